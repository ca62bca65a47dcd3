use osmosis_core::statistics::RunTally;
use osmosis_core::{OutcomeKind, RunName};
use osmosis_store::JudgeSummary;

use super::super::{FailureReport, RunDefinitions, RunReport, RunState};
use super::{HistogramBar, ReportedRollout, SharedReport};

/// What somebody who wants out of the page would write.
const HOSTILE: &str = "</pre></dd><script>alert(1)</script><img src=x onerror=alert(1)>\n```\n</details>\n\
                       @everyone [x](javascript:alert(1)) \u{1b}[2J\u{202e} | a | b |";

fn report() -> SharedReport {
    let failure = FailureReport {
        outcome: OutcomeKind::AgentFailed,
        error_type: "ValueError".to_owned(),
        message: HOSTILE.to_owned(),
        frame: Some("main.py:12 in <module>".to_owned()),
        error: format!("ValueError: {HOSTILE}"),
        count: 3,
        first: Some("1.0".to_owned()),
        examples: vec!["1.0".to_owned()],
        rows: Some("1".to_owned()),
        advice: None,
        rerun: String::new(),
    };
    let rollout = ReportedRollout {
        rollout: "4.0".to_owned(),
        outcome: OutcomeKind::Scored,
        reward: Some(0.25),
        prompt: Some(HOSTILE.to_owned()),
        answer: Some(HOSTILE.to_owned()),
        ground_truth: Some(HOSTILE.to_owned()),
        error: None,
        show: "osmosis eval show t 4.0".to_owned(),
    };
    SharedReport {
        run: RunReport {
            run_name: RunName::new("t").unwrap(),
            output_path: "/runs/t".into(),
            unauthenticated: None,
            total_rollouts: 4,
            numbers: RunTally::new(1).numbers(),
            already_complete: false,
            resumed: None,
            sampling: None,
            truncated: None,
            worst_rows: vec![],
            cost: None,
            judge: JudgeSummary::default(),
            regraded_from: None,
            policy_calls_in: None,
            duration_ms: None,
            withheld_variables: None,
            failures: vec![failure],
            definitions: RunDefinitions::default(),
            gates: None,
            changes: None,
            flips: None,
        },
        status: RunState::of(osmosis_store::RunStatus::Finished, false),
        created_at: "2026-01-31 12:00:00Z".to_owned(),
        project: Some(HOSTILE.to_owned()),
        model: Some(HOSTILE.to_owned()),
        dataset: Some("data/<b>.jsonl".to_owned()),
        reward_histogram: vec![HistogramBar {
            low: 0.0,
            high: 0.0,
            count: 1,
        }],
        lowest: vec![rollout],
        not_passed: 4,
        comparison: None,
    }
}

#[test]
fn what_outsiders_wrote_is_no_markup_in_the_page() {
    let page = report().html();
    for markup in [
        "<script",
        "<img",
        "</pre></dd><s",
        "\u{1b}",
        "\u{202e}",
        "onerror=a>",
    ] {
        assert!(
            !page.contains(markup),
            "`{}` is in the page",
            markup.escape_debug()
        );
    }
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains("default-src 'none'"));
    // Nothing is loaded from elsewhere, and nothing runs.
    for attribute in [" src=", " href=", " onload=", "url(", "@import"] {
        let quoted = page.matches(attribute).count();
        let shown = page.matches(&format!("&lt;img{attribute}")).count();
        assert_eq!(quoted, shown, "`{attribute}` is in the page");
    }
}

#[test]
fn what_outsiders_wrote_is_in_fences_or_escaped_in_markdown() {
    let text = report().markdown();
    let mut fence: Option<String> = None;
    for line in text.lines() {
        let ticks: String = line.chars().take_while(|c| *c == '`').collect();
        match &fence {
            None if ticks.len() >= 3 => fence = Some(ticks),
            Some(open) if ticks.len() >= open.len() && line == ticks => fence = None,
            Some(_) => {}
            None => {
                for markup in ["<script", "<img", "@everyone", "](java"] {
                    assert!(!line.contains(markup), "{line}");
                }
            }
        }
    }
    assert_eq!(fence, None);
    assert_eq!(text.matches("<details>").count(), 3);
}

#[test]
fn gates_stand_at_the_top_of_a_complete_run_and_are_not_judged_before() {
    let gates = [
        "pass_rate=0.8".parse().unwrap(),
        "reward=0.1".parse().unwrap(),
    ];
    let mut complete = report();
    complete.run.total_rollouts = 1;
    complete.run.numbers.outcomes.scored = 1;
    complete.run.numbers.pass_rate = Some(0.5);
    complete.run.numbers.reward.mean = Some(0.25);
    let complete = complete.judged_by(&gates);
    let markdown = complete.markdown();
    assert!(
        markdown.contains(
            "**Gate failed**\n\n- failed: pass\\_rate 0.5 is below 0.8\n- passed: reward 0.25 reaches 0.1\n"
        ),
        "{markdown}"
    );
    let page = complete.html();
    for line in [
        "<p class=\"verdict worse\">Gate failed: pass_rate 0.5 is below 0.8</p>",
        "<p class=\"verdict better\">Gate passed: reward 0.25 reaches 0.1</p>",
    ] {
        assert!(page.contains(line), "{page}");
    }

    let incomplete = report().judged_by(&gates);
    assert!(incomplete.run.is_incomplete());
    assert!(!incomplete.markdown().contains("Gate"));
    assert!(!incomplete.html().contains("Gate"));
}
