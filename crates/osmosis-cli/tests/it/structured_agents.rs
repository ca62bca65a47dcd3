//! Agents that ask for structured replies, each trained with the real packages of its framework. `builtin/tiny` has never
//! seen such a question: without a grammar no reply would be valid.

use camino::Utf8PathBuf;
use osmosis_testkit::python_environment;
use serde_json::{Value, json};

use crate::training::metrics;
use crate::workspace::Workspace;

/// The schema and the grader of all projects.
const CHOICE: &str = include_str!("structured_agents/choice.py");
const ROWS: [&str; 4] = [
    "What is 6 plus 7?",
    "What is 31 plus 64?",
    "What is 12 plus 5?",
    "What is 44 plus 3?",
];
const STEPS: usize = 6;
/// Of one step.
const ROLLOUTS: usize = 32;

/// Trains the project and holds the run against what training on constrained tokens promises.
fn check(project: &str, python: &Utf8PathBuf, lr: f64) {
    // Every row rewards the size 4, whatever is asked.
    let rows =
        ROWS.map(|question| json!({"user_prompt": question, "ground_truth": "4"}).to_string());
    let rows = rows.join("\n") + "\n";
    let workspace = Workspace::new(project, "", &rows);
    workspace.write("rollouts/r/choice.py", CHOICE);
    workspace.write(
        "configs/training/c.toml",
        &format!(
            "[experiment]\nrollout = \"r\"\nentrypoint = \"main.py\"\ndataset = \"d\"\nmodel_path = \"builtin/tiny\"\n\
             [training]\nrollout_batch_size = 4\nn_samples_per_prompt = 8\nsteps = {STEPS}\nlr = {lr:e}\nseed = 5\n\
             max_prompt_length = 600\nmax_response_length = 400\n"
        ),
    );
    let submit = ["train", "submit", "configs/training/c.toml", "--name", "t"];
    let arguments = [&submit[..], &["--python", python.as_str()]].concat();
    workspace.osmosis(&arguments).expect(0);
    all_replies_are_valid(&workspace);
    the_policy_has_learned(&metrics(&workspace));
}

fn all_replies_are_valid(workspace: &Workspace) {
    for row in 0..ROWS.len() {
        let arguments = ["train", "show", "t", &row.to_string(), "--calls", "--json"];
        let shown = workspace.osmosis(&arguments).expect(0).json();
        let rollouts = shown["data"].as_array().unwrap();
        assert_eq!(rollouts.len(), STEPS * ROLLOUTS / ROWS.len());
        for rollout in rollouts {
            // Graders raise where an answer does not follow the schema.
            assert_eq!(rollout["outcome"], "scored", "{rollout:#}");
            let mut structured = 0;
            for call in rollout["calls"].as_array().unwrap() {
                let exchange = &call["exchange"];
                let asked = &exchange["parameters"];
                if asked
                    .get("response_format")
                    .or(asked.get("tool_choice"))
                    .is_none()
                {
                    continue;
                }
                structured += 1;
                for said in exchange["replies"][0].as_array().unwrap() {
                    is_choice(said["text"].as_str().unwrap());
                }
            }
            assert!(structured > 0, "{rollout:#}");
        }
    }
}

/// JSON by the schema, or a call with it, and nothing else.
#[track_caller]
fn is_choice(text: &str) {
    let call = text.strip_suffix(')').and_then(|call| call.split_once('('));
    let value: Value = serde_json::from_str(call.map_or(text, |(_, arguments)| arguments))
        .unwrap_or_else(|error| panic!("{error}: {text}"));
    let colours = ["red", "green", "blue"].map(Value::from);
    assert!(colours.contains(&value["colour"]), "{text}");
    assert!((1..=9).contains(&value["size"].as_u64().unwrap()), "{text}");
    assert_eq!(value.as_object().unwrap().len(), 2, "{text}");
}

fn the_policy_has_learned(steps: &[Value]) {
    assert_eq!(steps.len(), STEPS);
    let number = |step: &Value, name: &str| {
        let number = step[name].as_f64();
        number.unwrap_or_else(|| panic!("no {name}: {step}"))
    };
    let mut updates = 0;
    for step in steps {
        if step.get("skipped").is_some() {
            // Nothing to compare, and no other reason.
            assert_eq!(step["groups/no_variance"], json!(ROWS.len()), "{step}");
            continue;
        }
        updates += 1;
        assert!(number(step, "tokens/trained") > 0.0, "{step}");
        assert!(number(step, "gradient_norm") > 0.0, "{step}");
        // Without the grammar's softmax the learner's would differ by more than 1.
        assert!(number(step, "logprob_mismatch/max") < 1e-4, "{step}");
    }
    assert!(updates >= 3, "{steps:#?}");
    let rewards: Vec<f64> = steps
        .iter()
        .map(|step| number(step, "reward/mean"))
        .collect();
    let last = f64::midpoint(rewards[STEPS - 2], rewards[STEPS - 1]);
    assert!(rewards[0] < 0.5 && last > rewards[0] + 0.3, "{rewards:?}");
}

#[test]
fn an_agent_of_the_agents_sdk_with_an_output_type_is_trained() {
    check(
        include_str!("structured_agents/openai_agents.py"),
        &python_environment::python(),
        3e-4,
    );
}

#[test]
fn an_agent_of_strands_with_a_structured_output_model_is_trained() {
    check(
        include_str!("structured_agents/strands_agents.py"),
        &python_environment::strands_python(),
        1e-4,
    );
}

#[test]
fn a_model_of_langchain_with_structured_output_is_trained() {
    check(
        include_str!("structured_agents/langchain.py"),
        &python_environment::structured_python(),
        3e-4,
    );
}

#[test]
fn an_agent_of_pydantic_ai_with_an_output_type_is_trained() {
    check(
        include_str!("structured_agents/pydantic_ai.py"),
        &python_environment::structured_python(),
        5e-5,
    );
}

#[test]
fn a_tool_agent_of_smolagents_is_trained() {
    check(
        include_str!("structured_agents/smolagents.py"),
        &python_environment::structured_python(),
        1e-4,
    );
}
