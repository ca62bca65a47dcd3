//! The bytes of every frame, as both sides of the worker protocol must write and read them.
//!
//! `fixtures/frames/NAME.msgpack` holds the bytes, `NAME.json` what they say: JSON text inside a
//! frame appears there as the string it is on the wire. The Python tests read the same files.
//! `OSMOSIS_BLESS=1 cargo nextest run -p osmosis-core golden` rewrites them, which is only right
//! together with a new `PROTOCOL_VERSION`, or while nobody speaks this one yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

use osmosis_core::frame::{
    Channel, Found, FromWorker, GradeTask, Hello, InteractionReward, JudgeAccess, Load, Manifest,
    PROTOCOL_VERSION, Problem, RunTask, ToWorker, TurnRewards, decode, encode,
};
use osmosis_core::{ErrorCategory, Failure, JsonText, Reward, RolloutId, Sample, SampleId};
use serde::Serialize;
use serde::de::DeserializeOwned;

#[test]
fn golden_frames_are_written_and_read_exactly() {
    let mut names = BTreeSet::new();
    for (name, frame) in from_worker() {
        assert!(names.insert(name), "two frames are called `{name}`");
        check(name, &frame);
    }
    for (name, frame) in to_worker() {
        assert!(names.insert(name), "two frames are called `{name}`");
        check(name, &frame);
    }
    let expected: BTreeSet<String> = names
        .iter()
        .flat_map(|name| [format!("{name}.msgpack"), format!("{name}.json")])
        .collect();
    let found: BTreeSet<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(found, expected, "a fixture without a frame, or the reverse");
}

#[test]
fn golden_frames_cover_every_variant() {
    let covered: BTreeSet<&str> = from_worker()
        .iter()
        .map(|(_, frame)| tag_from_worker(frame))
        .chain(to_worker().iter().map(|(_, frame)| tag_to_worker(frame)))
        .collect();
    // Adding a variant stops the two functions below from compiling, which leads here.
    assert_eq!(covered.len(), 14 + 8, "{covered:?}");
    for (name, frame) in from_worker() {
        assert_tag(name, tag_from_worker(&frame), &frame);
    }
    for (name, frame) in to_worker() {
        assert_tag(name, tag_to_worker(&frame), &frame);
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/frames")
}

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(name: &str, frame: &T) {
    let bytes = encode(frame).unwrap();
    let described: serde_json::Value = decode(&bytes).unwrap();
    let description = format!("{}\n", serde_json::to_string_pretty(&described).unwrap());
    let packed = folder().join(format!("{name}.msgpack"));
    let readable = folder().join(format!("{name}.json"));
    if std::env::var_os("OSMOSIS_BLESS").is_some() {
        fs::write(&packed, &bytes).unwrap();
        fs::write(&readable, &description).unwrap();
    }
    let golden = fs::read(&packed).unwrap_or_default();
    assert_eq!(bytes, golden, "`{name}` is no longer written as it was");
    assert_eq!(
        description,
        fs::read_to_string(&readable).unwrap_or_default(),
        "`{name}.json` does not describe `{name}.msgpack`"
    );
    assert_eq!(
        &decode::<T>(&golden).unwrap(),
        frame,
        "`{name}` is read differently"
    );
}

/// A frame is a map with one key, its type, and the fixture's name starts with that.
fn assert_tag<T: Serialize>(name: &str, tag: &str, frame: &T) {
    let described: serde_json::Map<String, serde_json::Value> =
        decode(&encode(frame).unwrap()).unwrap();
    assert_eq!(described.keys().collect::<Vec<_>>(), [tag]);
    assert!(name.starts_with(tag), "`{name}` holds a `{tag}`");
}

fn tag_from_worker(frame: &FromWorker) -> &'static str {
    match frame {
        FromWorker::Hello(_) => "hello",
        FromWorker::Loaded { .. } => "loaded",
        FromWorker::LoadFailed { .. } => "load_failed",
        FromWorker::Forked { .. } => "forked",
        FromWorker::ForkFailed { .. } => "fork_failed",
        FromWorker::ChildExited { .. } => "child_exited",
        FromWorker::Started { .. } => "started",
        FromWorker::RunDone { .. } => "run_done",
        FromWorker::GradeDone { .. } => "grade_done",
        FromWorker::Rejected { .. } => "rejected",
        FromWorker::TaskFailed { .. } => "task_failed",
        FromWorker::TaskCancelled { .. } => "task_cancelled",
        FromWorker::LoopBlocked { .. } => "loop_blocked",
        FromWorker::LoopUnblocked {} => "loop_unblocked",
    }
}

fn tag_to_worker(frame: &ToWorker) -> &'static str {
    match frame {
        ToWorker::Welcome { .. } => "welcome",
        ToWorker::Refused { .. } => "refused",
        ToWorker::Load(_) => "load",
        ToWorker::Fork { .. } => "fork",
        ToWorker::Run(_) => "run",
        ToWorker::Grade(_) => "grade",
        ToWorker::Cancel { .. } => "cancel",
        ToWorker::Shutdown {} => "shutdown",
    }
}

fn text(value: &str) -> String {
    value.to_owned()
}

fn json(document: &str) -> JsonText {
    JsonText::parse(document).unwrap()
}

fn id(name: &str) -> SampleId {
    SampleId::new(name).unwrap()
}

const MESSAGES: &str =
    r#"[{"role":"user","content":"6 × 7?"},{"role":"assistant","content":"42","logprob":-0.50}]"#;

fn bare_sample() -> Sample {
    Sample {
        id: SampleId::main(),
        messages: json("[]"),
        reward: None,
        remove_sample: false,
        metrics: None,
        extra_fields: None,
    }
}

fn full_sample() -> Sample {
    Sample {
        id: id("multiply agent ✓"),
        messages: json(MESSAGES),
        reward: Some(Reward::new(0.75).unwrap()),
        remove_sample: true,
        metrics: Some(json(r#"{"turns":2,"share":0.5}"#)),
        extra_fields: Some(json(r#"{"note":"kept as it was"}"#)),
    }
}

fn whole_reward_sample() -> Sample {
    Sample {
        reward: Some(Reward::new(1.0).unwrap()),
        messages: json(MESSAGES),
        ..bare_sample()
    }
}

fn from_worker() -> Vec<(&'static str, FromWorker)> {
    let hello = Hello {
        protocol: PROTOCOL_VERSION,
        sdk: text("osmosis_ai 0.1.0 (python 3.11.7)"),
        features: vec![text("fork")],
        token: text("token-1"),
        pid: 4711,
        channel: Channel::Control,
    };
    let workflow = Found {
        name: text("MultiplyWorkflow"),
        file: text("main.py"),
        line: 12,
        config: Some(text("multiply")),
        max_concurrent: Some(8),
    };
    let grader = Found {
        name: text("MultiplyGrader"),
        file: text("graders/multiply.py"),
        line: 300,
        config: None,
        max_concurrent: None,
    };
    let failure = Failure::new(ErrorCategory::Timeout, "TimeoutError", "");
    vec![
        (
            "hello_output",
            FromWorker::Hello(Hello {
                features: Vec::new(),
                channel: Channel::Output,
                pid: 70_000,
                ..hello.clone()
            }),
        ),
        ("hello_control", FromWorker::Hello(hello)),
        (
            "loaded_minimal",
            FromWorker::Loaded {
                manifest: Manifest {
                    workflow: Found {
                        config: None,
                        max_concurrent: None,
                        ..workflow.clone()
                    },
                    grader: None,
                    warnings: Vec::new(),
                    not_forkable: None,
                    self_graded: false,
                    serve_warnings: Vec::new(),
                },
            },
        ),
        (
            "loaded_self_graded",
            FromWorker::Loaded {
                manifest: Manifest {
                    workflow: workflow.clone(),
                    grader: None,
                    warnings: Vec::new(),
                    not_forkable: None,
                    self_graded: true,
                    serve_warnings: Vec::new(),
                },
            },
        ),
        (
            "loaded_serve_warnings",
            FromWorker::Loaded {
                manifest: Manifest {
                    workflow: workflow.clone(),
                    grader: Some(grader.clone()),
                    warnings: Vec::new(),
                    not_forkable: None,
                    self_graded: false,
                    serve_warnings: vec![text("no `create_rollout_server()` in `main.py`")],
                },
            },
        ),
        (
            "loaded_full",
            FromWorker::Loaded {
                manifest: Manifest {
                    workflow,
                    grader: Some(grader),
                    warnings: vec![text("no `create_rollout_server()` in `main.py`")],
                    not_forkable: Some(text("2 threads run after the import")),
                    self_graded: false,
                    serve_warnings: Vec::new(),
                },
            },
        ),
        (
            "load_failed",
            FromWorker::LoadFailed {
                problems: vec![
                    Problem {
                        code: text("import_failed"),
                        message: text("`main.py` raised ModuleNotFoundError: No module named 'x'"),
                        hint: Some(text("add `x` to the dependencies of `pyproject.toml`")),
                        traceback: Some(text("Traceback (most recent call last):\n  ...")),
                    },
                    Problem {
                        code: text("no_grader"),
                        message: text("no concrete `Grader` in `main.py`"),
                        hint: None,
                        traceback: None,
                    },
                ],
            },
        ),
        (
            "forked",
            FromWorker::Forked {
                token: text("token-2"),
                pid: 4712,
            },
        ),
        (
            "fork_failed",
            FromWorker::ForkFailed {
                token: text("token-2"),
                message: text("[Errno 11] Resource temporarily unavailable"),
            },
        ),
        (
            "child_exited_code",
            FromWorker::ChildExited {
                pid: 4712,
                code: Some(1),
                signal: None,
            },
        ),
        (
            "child_exited_negative_code",
            FromWorker::ChildExited {
                pid: 4712,
                code: Some(-1),
                signal: None,
            },
        ),
        (
            "child_exited_signal",
            FromWorker::ChildExited {
                pid: 4712,
                code: None,
                signal: Some(11),
            },
        ),
        ("started", FromWorker::Started { task: 0 }),
        (
            "run_done_empty",
            FromWorker::RunDone {
                task: 1,
                samples: Vec::new(),
                metrics: None,
                interactions: Vec::new(),
            },
        ),
        (
            "run_done_interactions",
            FromWorker::RunDone {
                task: 2,
                samples: Vec::new(),
                metrics: None,
                interactions: vec![InteractionReward {
                    completion: text("chatcmpl-1"),
                    reward: Reward::new(-0.5).unwrap(),
                }],
            },
        ),
        (
            "run_done_full",
            FromWorker::RunDone {
                task: u64::MAX,
                samples: vec![bare_sample(), full_sample()],
                metrics: Some(json(r#"{"turns":2}"#)),
                interactions: Vec::new(),
            },
        ),
        (
            "grade_done",
            FromWorker::GradeDone {
                task: 2,
                samples: vec![whole_reward_sample(), full_sample()],
                turn_rewards: TurnRewards::new(),
            },
        ),
        (
            "grade_done_turn_rewards",
            FromWorker::GradeDone {
                task: 2,
                samples: vec![whole_reward_sample()],
                turn_rewards: TurnRewards::from([(
                    SampleId::main(),
                    vec![Reward::new(0.0).unwrap(), Reward::new(-0.5).unwrap()],
                )]),
            },
        ),
        (
            "rejected",
            FromWorker::Rejected {
                task: 3,
                reason: text("the workflow returned None"),
            },
        ),
        (
            "task_failed_bare",
            FromWorker::TaskFailed {
                task: 200,
                failure: failure.clone(),
            },
        ),
        (
            "task_failed_traceback",
            FromWorker::TaskFailed {
                task: 70_000,
                failure: Failure {
                    category: ErrorCategory::ValidationError,
                    kind: text("ValueError"),
                    message: text("not a number: 'x'"),
                    traceback: Some(text("Traceback (most recent call last):\n  ...")),
                },
            },
        ),
        (
            "task_failed_http_error",
            FromWorker::TaskFailed {
                task: 4,
                failure: Failure {
                    category: ErrorCategory::HttpError,
                    ..failure.clone()
                },
            },
        ),
        (
            "task_failed_agent_error",
            FromWorker::TaskFailed {
                task: 5,
                failure: Failure {
                    category: ErrorCategory::AgentError,
                    ..failure
                },
            },
        ),
        ("task_cancelled", FromWorker::TaskCancelled { task: 6 }),
        (
            "loop_blocked",
            FromWorker::LoopBlocked {
                blocked_ms: 5_000,
                stack: text("main.py:12 in grade\n    time.sleep(60)"),
                task: Some(4),
            },
        ),
        (
            "loop_blocked_by_nobody_known",
            FromWorker::LoopBlocked {
                blocked_ms: 5_000,
                stack: text(""),
                task: None,
            },
        ),
        ("loop_unblocked", FromWorker::LoopUnblocked {}),
    ]
}

fn to_worker() -> Vec<(&'static str, ToWorker)> {
    let run = RunTask {
        task: 7,
        rollout_id: RolloutId::of(3, 1),
        prompt: json(r#"[{"role":"user","content":"6 \u00d7 7?  ","weight":1.50}]"#),
        metadata: Some(json(r#"{"b":1,"a":[null,true]}"#)),
        chat_completions_url: text("http://127.0.0.1:8080/v1"),
        api_key: text("key-1"),
        artifacts_dir: Some(text("/run/artifacts/r3-1")),
        row: None,
        is_eval: false,
        other_api_key: None,
    };
    let grade = GradeTask {
        task: 8,
        rollout_id: RolloutId::of(3, 1),
        label: Some(text("42")),
        samples: vec![bare_sample(), full_sample()],
        metadata: Some(json(r#"{"b":1,"a":[null,true]}"#)),
        artifacts_dir: Some(text("/run/artifacts/r3-1")),
        project_path: text("/workspace/rollouts/multiply"),
        judge: None,
        turns: BTreeMap::new(),
    };
    vec![
        ("welcome", ToWorker::Welcome { worker: 1 }),
        (
            "refused",
            ToWorker::Refused {
                reason: text("protocol 2 is not 1"),
            },
        ),
        (
            "load_plain",
            ToWorker::Load(Load {
                project_path: text("/workspace/rollouts/multiply"),
                entrypoint: text("main.py"),
                workflow: json("{}"),
                grader: json("{}"),
            }),
        ),
        (
            "load_configured",
            ToWorker::Load(Load {
                project_path: text("/workspace/rollouts/multiply"),
                entrypoint: text("main.py:MultiplyWorkflow"),
                workflow: json(r#"{"name":"multiply","max_turns":3}"#),
                grader: json(r#"{"tolerance":0.01}"#),
            }),
        ),
        (
            "fork",
            ToWorker::Fork {
                token: text("token-2"),
            },
        ),
        (
            "run_minimal",
            ToWorker::Run(RunTask {
                metadata: None,
                artifacts_dir: None,
                ..run.clone()
            }),
        ),
        (
            "run_row",
            ToWorker::Run(RunTask {
                row: Some(json(r#"{"question":"6 \u00d7 7?","answer":1.50}"#)),
                is_eval: true,
                other_api_key: Some(text("key-2")),
                ..run.clone()
            }),
        ),
        ("run_full", ToWorker::Run(run)),
        (
            "grade_minimal",
            ToWorker::Grade(GradeTask {
                label: None,
                samples: Vec::new(),
                metadata: None,
                artifacts_dir: None,
                ..grade.clone()
            }),
        ),
        (
            "grade_judge",
            ToWorker::Grade(GradeTask {
                judge: Some(JudgeAccess {
                    base_url: text("http://127.0.0.1:8080/v1"),
                    api_key: text("key-2"),
                    model: text("gpt-5"),
                }),
                ..grade.clone()
            }),
        ),
        (
            "grade_turns",
            ToWorker::Grade(GradeTask {
                turns: BTreeMap::from([(SampleId::main(), 3), (SampleId::new("b").unwrap(), 0)]),
                ..grade.clone()
            }),
        ),
        ("grade_full", ToWorker::Grade(grade)),
        ("cancel", ToWorker::Cancel { task: 9 }),
        ("shutdown", ToWorker::Shutdown {}),
    ]
}
