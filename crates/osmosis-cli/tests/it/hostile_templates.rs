//! Chat templates that were made to hurt whoever runs them: a clear error at the start, no hang.

use std::time::Instant;

use osmosis_policy::EmbeddedModel;

use crate::workspace::{ECHO_SCRIPT, PLAIN, Workspace, echo_rows};

/// A model with this chat template, and a config for it.
fn workspace(template: &str) -> Workspace {
    let workspace = Workspace::new(PLAIN, ECHO_SCRIPT, &echo_rows(1));
    EmbeddedModel::builtin("tiny")
        .unwrap()
        .save(&workspace.root.join("model"))
        .unwrap();
    workspace.write("model/chat_template.jinja", template);
    workspace.model("./model", "");
    workspace
}

#[track_caller]
fn check(template: &str, told: &str) {
    let began = Instant::now();
    let ran = workspace(template).submit(&["--json"]).expect(1);
    let message = ran.error()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(told), "no `{told}` in `{message}`");
    assert!(message.contains("the chat template"), "{message}");
    // Bounded by the limits, of processor time too; generous for a busy machine.
    assert!(began.elapsed().as_secs() < 110, "{:?}", began.elapsed());
}

#[test]
fn a_template_that_doubles_a_text_again_and_again_is_refused() {
    check(
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "take more than 1024 MiB of memory",
    );
}

#[test]
fn a_template_of_slow_steps_is_refused() {
    check(
        "{% for i in range(99999) %}{% set s = ('x' * 50000000) | upper | length %}{% endfor %}",
        "keeps it busy for more than 5 s",
    );
}

#[test]
fn a_template_that_nests_a_list_again_and_again_is_refused() {
    check(
        "{% set n = namespace(l=[]) %}{% for i in range(99999) %}{% for j in range(10) %}\
         {% set n.l = [n.l] %}{% endfor %}{% endfor %}{{ n.l }}",
        "overflow the stack",
    );
}

#[test]
fn a_template_that_goes_on_for_ever_is_refused() {
    check(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "more than",
    );
}

#[test]
fn a_good_template_is_tried_out_and_taken() {
    let workspace = workspace(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    );
    workspace.submit(&["--dry-run"]).expect(0);
}
