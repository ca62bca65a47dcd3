//! What two tables must agree on.

use osmosis_core::{Reward, RolloutId, SampleId};
use osmosis_store::VerifyReport;
use osmosis_store::encoding::read_rewards;
use rusqlite::Connection;

use crate::rollouts;
use crate::sql::SqlError;

/// Each finds rows that contradict others: who, and what is wrong with them.
const CONTRADICTIONS: &[(&str, &str)] = &[
    (
        "SELECT 'rollout ' || rollout_id FROM rollouts WHERE (state = 'done') <> (outcome IS NOT NULL)",
        "its state and its outcome contradict each other",
    ),
    (
        "SELECT 'rollout ' || rollout_id FROM rollouts
         WHERE state <> 'done' AND rollout_id IN (SELECT rollout_id FROM samples)",
        "it has samples but no result",
    ),
    (
        "SELECT 'table calls' WHERE
            (SELECT count(*) FROM calls) <> (SELECT coalesce(max(call_id), 0) FROM calls)",
        "calls are missing: their ids have gaps",
    ),
    (
        "SELECT 'call ' || call_id FROM calls
         WHERE base_call_id IS NOT NULL AND base_call_id NOT IN (SELECT call_id FROM calls)",
        "the call that it extends is missing",
    ),
];

pub(super) fn check(connection: &Connection, report: &mut VerifyReport) {
    for (sql, message) in CONTRADICTIONS {
        if let Err(error) = contradictions(connection, sql, message, report) {
            report.add("database", error.to_string());
        }
    }
    if let Err(error) = check_rewards(connection, report) {
        report.add("table samples", error.to_string());
    }
}

fn contradictions(
    connection: &Connection,
    sql: &str,
    message: &str,
    report: &mut VerifyReport,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        report.add(row.get::<_, String>(0)?, message);
    }
    Ok(())
}

/// The rewards of the samples are also in their rollout.
fn check_rewards(connection: &Connection, report: &mut VerifyReport) -> Result<(), SqlError> {
    let mut statement = connection.prepare(
        "SELECT rollout_id, sample_rewards FROM rollouts
         WHERE state = 'done' AND sample_rewards IS NOT NULL",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        let agree = rewards_agree(connection, &id, row.get_ref(1)?.as_str()?);
        match agree {
            Ok(true) => {}
            Ok(false) => report.add(
                format!("rollout {id}"),
                "its rewards and those of its samples contradict each other",
            ),
            Err(error) => report.add(format!("rollout {id}"), error.to_string()),
        }
    }
    Ok(())
}

/// Whether the samples of a rollout, without those that were removed, have these rewards.
pub(crate) fn rewards_agree(
    connection: &Connection,
    id: &str,
    rewards: &str,
) -> Result<bool, SqlError> {
    let told = read_rewards(Some(rewards))?;
    let samples = rollouts::samples(connection, &RolloutId::new(id.to_owned())?)?;
    let kept: Vec<(SampleId, Option<Reward>)> = samples
        .into_iter()
        .filter(|sample| !sample.remove_sample)
        .map(|sample| (sample.id, sample.reward))
        .collect();
    Ok(told == kept)
}
