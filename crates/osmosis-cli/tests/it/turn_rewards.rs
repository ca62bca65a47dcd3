//! Graders that reward single turns: what is trained on, what is shown, and what is refused.

use serde_json::Value;

use crate::judge::regrade;
use crate::training::metrics;
use crate::workspace::{PLAIN, Workspace, echo_rows};

const SCRIPT: &str = "[[reply]]\ntext = \"Yes\"\n";

/// An agent that asks twice, with this grader.
fn two_turns(grade: &str) -> String {
    let agent = PLAIN.replace(
        "        return [*ctx.prompt, await ask(ctx.prompt)]",
        "        first = [*ctx.prompt, await ask(ctx.prompt), {'role': 'user', 'content': 'More.'}]\n        \
         return [*first, await ask(first)]",
    );
    let (agent, _) = agent.split_once("class Exact").unwrap();
    let agent = agent.replace(
        "\"messages\": messages",
        "\"messages\": messages, \"max_tokens\": 6",
    );
    let lines: Vec<String> = grade
        .lines()
        .map(|line| format!("        {line}"))
        .collect();
    format!(
        "{agent}class Graded(Grader):\n    async def grade(self, ctx):\n        ctx.set_reward(0.5)\n        \
         said = [m['content'] for m in ctx.sample.messages if m['role'] == 'assistant']\n{}\n",
        lines.join("\n")
    )
}

#[test]
fn training_compares_turns_by_their_own_rewards() {
    // The samples' rewards are all equal, and so are those of the second turns: only first turns can teach.
    let grade = "ctx.set_turn_rewards([sum(said[0].encode()) % 97, 0.25])";
    let workspace = Workspace::new(&two_turns(grade), SCRIPT, &echo_rows(2));
    let training = "steps = 1\nturn_discount = 0.0\nexport_style = \"individual\"\n";
    workspace.training("builtin/tiny", training, "");
    workspace.train(&["--fresh"]).expect(0);
    let step = metrics(&workspace).last().unwrap().clone();
    assert_eq!(step["groups/used"], 2, "{step}");
    assert_eq!(step["rows"], 8, "{step}");
    assert_eq!(step["reward/mean"], 0.5, "{step}");
    let without = two_turns("pass");
    workspace.write("rollouts/r/main.py", &without);
    workspace.train(&["--fresh"]).expect(3);
    let step = metrics(&workspace).last().unwrap().clone();
    assert_eq!(step["groups/used"], 0, "{step}");
}

#[test]
fn rewards_of_turns_are_shown_and_given_again_by_a_regrade() {
    let grade = "ctx.set_turn_rewards([index / 4 for index in range(ctx.turn_count())])";
    let workspace = Workspace::new(&two_turns(grade), SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    let shown = |run: &str| {
        workspace
            .osmosis(&["eval", "show", run, "0"])
            .expect(0)
            .stdout
    };
    let text = shown("t");
    assert!(text.contains("reward 0.5, by turn 0, 0.25"), "{text}");
    let details = workspace
        .osmosis(&["eval", "show", "t", "0", "--json"])
        .expect(0)
        .json();
    let turns = &details["data"][0]["samples"][0]["turn_rewards"];
    assert_eq!(turns, &serde_json::json!([0.0, 0.25]), "{details}");

    let other = grade.replace("/ 4", "/ 8");
    workspace.write("rollouts/r/main.py", &two_turns(&other));
    regrade(&workspace, "t", &["--name", "again"]).expect(0);
    let text = shown("again");
    assert!(text.contains("reward 0.5, by turn 0, 0.125"), "{text}");
}

#[test]
fn another_number_of_rewards_than_turns_is_no_grade() {
    let grade = "ctx.set_turn_rewards([1.0] * (int(ctx.label) + 1))";
    let workspace = Workspace::new(&two_turns(grade), SCRIPT, &echo_rows(3));
    workspace.submit(&[]).expect(0);
    assert_eq!(workspace.outcomes(), ["ungraded", "scored", "ungraded"]);
    let errors: Vec<Value> = workspace
        .index()
        .iter()
        .map(|line| line["error"].clone())
        .collect();
    for (row, given) in [(0, 1), (2, 3)] {
        let expected = format!("sample `main` has 2 turns, and got rewards for {given}");
        assert!(errors[row].to_string().contains(&expected), "{errors:?}");
    }
}

#[test]
fn rewards_of_turns_that_are_written_past_the_context_are_not_believed() {
    let grade = "ctx.sample.extra_fields['interactions'] = [{'completion': '', 'calls': [0], 'reward': 1.0}]\n\
                 ctx.sample.extra_fields['mine'] = 1";
    let workspace = Workspace::new(&two_turns(grade), SCRIPT, &echo_rows(1));
    workspace.submit(&[]).expect(0);
    let details = workspace
        .osmosis(&["eval", "show", "t", "0", "--json"])
        .expect(0)
        .json();
    let sample = &details["data"][0]["samples"][0];
    assert_eq!(sample["turn_rewards"], Value::Null, "{sample}");
    assert_eq!(
        sample["extra_fields"],
        serde_json::json!({"mine": 1}),
        "{sample}"
    );
}
