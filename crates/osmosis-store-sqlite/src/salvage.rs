//! A new run of everything in a damaged one that verifies. Its rows get MACs by a key of its own, if those it is made of have
//! some that are right.
//!
//! A rollout keeps its result when its row, its samples and the calls of its result are all whole. Otherwise it
//! waits again, so that a resume runs it; one whose row is lost is planned again by the resume. Tables are read by
//! row id, past pages that can't be read, so that one bad page costs its own rows alone.

mod first_page;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

use camino::Utf8Path;
use osmosis_core::{RolloutId, RunName};
use osmosis_store::authenticity::RecordKey;
use osmosis_store::encoding::Conversations;
use osmosis_store::{KeyFolder, NewCall, Pieces, SalvageReport, StoreError, VerifyReport};
use rusqlite::types::Value;
use rusqlite::{Connection, params, params_from_iter};

use self::rows::{SavedRow, saved_rows};
use crate::authentic::{self, Ledger, Sealing};
use crate::bodies::{Bodies, BodySource};
use crate::calls;
use crate::checksum::{
    self, BATCHES, CALLS, Checked, ROLLOUTS, ROWS, RUN, RowCheck, SAMPLES, STEPS,
};
use crate::private::{create_private_file, create_private_folder};
use crate::segment::{SEGMENTS_FOLDER, SegmentWriter};
use crate::sql::{SqlError, sqlite_error};
use crate::store::{DATABASE_FILE, SqliteOptions, SqliteStore, connect};
use crate::verify;
use crate::verify::counts::rewards_agree;
use crate::verify::database::ALTERED;
use crate::{queue, rollouts, schema};

/// Calls that are read and written in one transaction.
const CALLS_AT_ONCE: usize = 256;

impl SqliteStore {
    /// Makes a new run named `name` in the folder `to`, which must not be there, of everything in `from` that
    /// verifies. `from` is only read. Blocks.
    pub fn salvage(
        from: &Utf8Path,
        to: &Utf8Path,
        name: &RunName,
        keys: &KeyFolder,
    ) -> Result<SalvageReport, StoreError> {
        if let Some(holder) = Self::holder(from) {
            return Err(StoreError::Held {
                path: from.to_owned(),
                holder: holder.to_string(),
            });
        }
        let database = to.join(DATABASE_FILE);
        if to.exists() {
            return Err(StoreError::Io {
                path: to.to_owned(),
                message: "is there already".to_owned(),
                full: false,
            });
        }
        create_private_folder(to, |_| false).map_err(|error| StoreError::io(to, &error))?;
        create_private_file(&database).map_err(|error| StoreError::io(&database, &error))?;
        let source = first_page::open(&from.join(DATABASE_FILE), to)?;
        let mut target = connect(&database).map_err(|error| sqlite_error(&database, &error))?;
        schema::migrate(&mut target, &database)?;
        // A run whose records can't be authenticated does not become one whose can.
        let source_key = authentic::identify(&source.connection, &from.join(DATABASE_FILE), keys)
            .ok()
            .and_then(|found| found.key().cloned());
        let target_keys = match source_key {
            Some(_) => keys.clone(),
            None => KeyFolder::none(),
        };
        let authentication = authentic::begin(&target, &database, &target_keys)?;
        let mut sealing = Sealing::open(&target, &database, authentication)?;
        // One sync at the end: until then there is nothing to lose.
        target
            .pragma_update(None, "synchronous", "NORMAL")
            .map_err(|error| sqlite_error(&database, &error))?;
        let mut report = SalvageReport::default();
        if let Some(lost) = source.lost {
            report.lose(lost, "it is not whole");
        }
        let salvage = Salvage {
            all_checksummed: all_checksummed(&source.connection, to)?,
            source: &source.connection,
            target: &target,
            source_key: source_key.as_ref(),
            target_key: sealing.authentication.key(),
            ledger: &sealing.ledger,
            name,
            lost_call_rows: false,
            report,
        };
        let report = salvage
            .run(&from.join(SEGMENTS_FOLDER), &to.join(SEGMENTS_FOLDER))
            .map_err(|error| error.into_store_error(&database))?;
        let sealed = sealing.seal(&target);
        sealing.committed(sealed.map_err(|error| error.into_store_error(&database))?);
        sealing.remember();
        target
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(|error| sqlite_error(&database, &error))?;
        source.remove();
        Ok(report)
    }
}

/// Rows without a checksum are kept when the run has such rows, and lost when it must not.
fn all_checksummed(source: &Connection, path: &Utf8Path) -> Result<bool, StoreError> {
    match verify::database::all_checksummed(source) {
        Ok(all) => Ok(all),
        Err(error) => {
            let error = sqlite_error(path, &error);
            match error {
                StoreError::Damaged { .. } => Ok(false),
                other => Err(other),
            }
        }
    }
}

struct Salvage<'s> {
    source: &'s Connection,
    target: &'s Connection,
    source_key: Option<&'s RecordKey>,
    target_key: Option<&'s RecordKey>,
    ledger: &'s Ledger,
    name: &'s RunName,
    all_checksummed: bool,
    /// Calls are gone of which nobody knows whose they were.
    lost_call_rows: bool,
    report: SalvageReport,
}

impl Salvage<'_> {
    fn run(mut self, segments: &Utf8Path, into: &Utf8Path) -> Result<SalvageReport, SqlError> {
        self.target.execute_batch("BEGIN IMMEDIATE")?;
        if !self.all_checksummed {
            self.target
                .execute("UPDATE writer SET all_checksummed = 0", [])?;
        }
        let serves = self.run_record()?;
        self.report.rows = self.copy_all(&ROWS)?;
        self.rollouts()?;
        self.samples()?;
        self.report.steps = self.copy_all(&STEPS)?;
        self.report.batches = self.copy_all(&BATCHES)?;
        self.unchecked_tables()?;
        self.target.execute_batch("COMMIT")?;
        let lost = self.calls(segments, into, serves)?;
        self.target.execute_batch("BEGIN IMMEDIATE")?;
        self.put_back_incomplete(&lost)?;
        self.target.execute_batch("COMMIT")?;
        let counts = rollouts::counts(self.target)?;
        self.lost_unseen();
        self.report.results = counts.done;
        self.report.waiting = counts.queued + counts.leased;
        Ok(self.report)
    }

    /// A page that is damaged where it says which rows it has loses them without an error. Indexes may still name
    /// them, which SQLite's own check tells.
    fn lost_unseen(&mut self) {
        let mut found = VerifyReport::default();
        verify::database::check_structure(self.source, &mut found);
        if let Some(finding) = found.damage.first() {
            let more = found.findings - 1;
            self.report.lose(
                "what damaged pages and indexes no longer lead to",
                format!("{} ({more} more findings)", finding.message),
            );
        }
    }

    /// The rows of a table that are whole; the others are named.
    fn whole_rows(&mut self, table: &Checked) -> Vec<SavedRow> {
        let found = saved_rows(self.source, table, self.source_key);
        for (what, why) in found.unreadable {
            self.report.lose(what, why);
        }
        let mut whole = Vec::with_capacity(found.rows.len());
        for row in found.rows {
            match row.check {
                RowCheck::Right => whole.push(row),
                RowCheck::Missing if !self.all_checksummed => whole.push(row),
                RowCheck::Missing => self.report.lose(row.place, "its checksum is missing"),
                RowCheck::Wrong => self.report.lose(row.place, "its checksum is wrong"),
                RowCheck::Altered => self.report.lose(row.place, ALTERED),
            }
        }
        whole
    }

    fn copy_all(&mut self, table: &Checked) -> Result<u64, SqlError> {
        let rows = self.whole_rows(table);
        let count = rows.len() as u64;
        for row in rows {
            self.copy(table, row)?;
        }
        Ok(count)
    }

    /// Tables whose rows carry no checksum are copied as they are, as far as they can be read.
    fn unchecked_tables(&mut self) -> Result<(), SqlError> {
        let mut select = self.target.prepare(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'",
        )?;
        let names = select.query_map([], |row| row.get::<_, String>(0))?;
        let names: Vec<String> = names.collect::<Result<_, _>>()?;
        for name in names {
            let is_known = name == "writer" || checksum::TABLES.iter().any(|t| t.table == name);
            if !is_known && let Err(error) = self.copy_unchecked(&name) {
                self.report
                    .lose(format!("rows of table {name}"), error.to_string());
            }
        }
        Ok(())
    }

    fn copy_unchecked(&mut self, table: &str) -> Result<(), SqlError> {
        let mut select = self
            .source
            .prepare(&format!("SELECT * FROM main.{table}"))?;
        let columns = select.column_names().collect::<Vec<_>>().join(", ");
        let marks = vec!["?"; select.column_count()].join(", ");
        let mut insert = self.target.prepare(&format!(
            "INSERT INTO main.{table} ({columns}) VALUES ({marks})"
        ))?;
        let count = select.column_count();
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let values: Result<Vec<Value>, _> = (0..count).map(|at| row.get(at)).collect();
            if let Err(error) = insert.execute(params_from_iter(values?)) {
                // Of a rollout that is lost, say.
                self.report
                    .lose(format!("a row of table {table}"), error.to_string());
            }
        }
        Ok(())
    }

    /// Adds a row as it was. One that another contradicts is lost; the database is damaged, after all.
    fn copy(&mut self, table: &Checked, row: SavedRow) -> Result<bool, SqlError> {
        let before = self.ledger.totals();
        let added = self
            .target
            .prepare_cached(&format!("INSERT {}", table.copy()))?
            .execute(params_from_iter(row.values));
        match added.map_err(SqlError::from) {
            Ok(_) => Ok(true),
            Err(error) if error.concerns_one_write() => {
                // It may have been counted before what it refers to was looked for.
                self.ledger.set_totals(before);
                self.report.lose(row.place, error.to_string());
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the run is one that serves, whose calls need no rollout.
    fn run_record(&mut self) -> Result<bool, SqlError> {
        let Some(row) = self.whole_rows(&RUN).into_iter().next() else {
            if self.report.lost.is_empty() {
                self.report.lose("the run's own record", "it is missing");
            }
            return Ok(false);
        };
        let serves = row.text(RUN.position("kind")) == Some("serving");
        let mut values = row.values;
        // The checksum is made anew: the name is another one.
        values.truncate(RUN.columns.len());
        if let Some(name) = values.get_mut(RUN.position("name")) {
            *name = Value::Text(self.name.to_string());
        }
        let numbers: Vec<String> = (1..=RUN.columns.len()).map(|n| format!("?{n}")).collect();
        let mut given = vec![("only_one", "1")];
        given.extend(
            RUN.columns
                .iter()
                .zip(&numbers)
                .map(|(column, number)| (*column, number.as_str())),
        );
        let insert = format!("INSERT {}", RUN.insertion(&given));
        self.target.execute(&insert, params_from_iter(values))?;
        // Something may have to run again.
        let changes =
            checksum::RUN.assignments(&[("status", "'interrupted'"), ("finished_at_ms", "NULL")]);
        self.target
            .execute(&format!("UPDATE main.run SET {changes}"), [])?;
        self.report.has_record = true;
        Ok(serves)
    }

    fn rollouts(&mut self) -> Result<(), SqlError> {
        for row in self.whole_rows(&ROLLOUTS) {
            // Also where the dataset row is lost, whose place the foreign key guards.
            self.copy(&ROLLOUTS, row)?;
        }
        // Leases ended with their process.
        queue::recover_all(self.target)?;
        Ok(())
    }

    /// Samples of rollouts that have a result, and the rollouts that lack some of theirs.
    fn samples(&mut self) -> Result<(), SqlError> {
        for row in self.whole_rows(&SAMPLES) {
            self.copy(&SAMPLES, row)?;
        }
        let mut select = self.target.prepare(
            "SELECT rollout_id, sample_rewards FROM rollouts
             WHERE +state = 'done' AND sample_rewards IS NOT NULL",
        )?;
        let finished = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let finished: Vec<(String, String)> = finished.collect::<Result<_, _>>()?;
        drop(select);
        for (id, rewards) in finished {
            if !rewards_agree(self.target, &id, &rewards).unwrap_or(false) {
                self.put_back(&id, "samples of it are lost")?;
            }
        }
        Ok(())
    }

    /// A result that is not whole is none.
    fn put_back(&mut self, id: &str, why: &str) -> Result<(), SqlError> {
        self.target
            .prepare_cached("DELETE FROM main.samples WHERE rollout_id = ?1")?
            .execute([id])?;
        let changed = self
            .target
            .prepare_cached(&format!(
                "UPDATE main.rollouts SET {} WHERE rollout_id = ?1 AND state = 'done'",
                queue::put_back()
            ))?
            .execute([id])?;
        if changed > 0 {
            self.report.lose(format!("the result of rollout {id}"), why);
        }
        Ok(())
    }

    /// Records every call whose row and bodies are whole anew. Returns the attempts that lack one.
    fn calls(
        &mut self,
        segments: &Utf8Path,
        into: &Utf8Path,
        serves: bool,
    ) -> Result<BTreeSet<(String, u32)>, SqlError> {
        let lost_before = self.report.lost.len();
        let rows = self.whole_rows(&CALLS);
        // Ids have no gaps in a run that is whole.
        let without_gap = rows
            .last()
            .is_none_or(|row| usize::try_from(row.rowid) == Ok(rows.len()));
        self.lost_call_rows = self.report.lost.len() > lost_before || !without_gap;
        let mut writer = SegmentWriter::open(
            into.to_owned(),
            SqliteOptions::default().segment_bytes,
            None,
        )?;
        let mut conversations = Conversations::default();
        let mut bodies = Bodies::new(
            self.source,
            BodySource {
                segments,
                key: self.source_key,
            },
        );
        let mut lost = BTreeSet::new();
        let has_rollout = self.rollout_ids()?;
        for rows in rows.chunks(CALLS_AT_ONCE) {
            self.target.execute_batch("BEGIN IMMEDIATE")?;
            let mut insertion = calls::insertion(self.target, self.target_key)?;
            for row in rows {
                let id = row.text(CALLS.position("rollout_id")).unwrap_or_default();
                if !serves && !has_rollout.contains(id) {
                    // The rollout begins anew, with attempts that would be taken for these.
                    self.report.lose(&*row.place, "its rollout is lost");
                    continue;
                }
                match self.call(row, &mut bodies) {
                    Ok(call) => {
                        calls::record(&mut insertion, &mut writer, &mut conversations, &call)
                            .map_err(calls::CallFailure::into_sql_error)?;
                        self.report.calls += 1;
                    }
                    Err(error) => {
                        self.report.lose(&*row.place, error.to_string());
                        lost.insert((id.to_owned(), row.small(CALLS.position("attempt"))));
                    }
                }
            }
            drop(insertion);
            writer.sync()?;
            self.target.execute_batch("COMMIT")?;
        }
        Ok(lost)
    }

    fn rollout_ids(&self) -> Result<BTreeSet<String>, SqlError> {
        let mut select = self.target.prepare("SELECT rollout_id FROM rollouts")?;
        let ids = select.query_map([], |row| row.get(0))?;
        Ok(ids.collect::<Result<_, _>>()?)
    }

    fn call(&self, row: &SavedRow, bodies: &mut Bodies<'_>) -> Result<NewCall, SqlError> {
        let select = format!("SELECT {} FROM calls WHERE call_id = ?1", calls::COLUMNS);
        let mut select = self.source.prepare_cached(&select)?;
        let mut found = select.query([row.rowid])?;
        let missing = || SqlError::Senseless("it can't be read again".to_owned());
        let record = calls::call(found.next()?.ok_or_else(missing)?)?;
        let body = bodies.read(record.call_id)?.ok_or_else(missing)?;
        Ok(NewCall {
            rollout_id: record.rollout_id,
            attempt: record.attempt,
            sample_id: record.sample_id,
            purpose: record.purpose,
            dialect: record.dialect,
            model: record.model,
            upstream: record.upstream,
            policy_version: record.policy_version,
            streamed: record.streamed,
            status: record.status,
            error: record.error,
            prompt_tokens: record.prompt_tokens,
            completion_tokens: record.completion_tokens,
            cached_tokens: record.cached_tokens,
            reasoning_tokens: record.reasoning_tokens,
            queued_at_ms: record.queued_at_ms,
            sent_at_ms: record.sent_at_ms,
            first_byte_at_ms: record.first_byte_at_ms,
            done_at_ms: record.done_at_ms,
            request: body.request,
            response: Pieces::from(body.response),
            tokens: body.tokens,
        })
    }

    /// Rollouts whose result rests on calls that are lost: named ones, and, where whole rows of calls are gone,
    /// those that have fewer than they say.
    fn put_back_incomplete(&mut self, lost: &BTreeSet<(String, u32)>) -> Result<(), SqlError> {
        let mut incomplete: BTreeMap<String, &str> = BTreeMap::new();
        for (id, attempt) in lost {
            let is_the_result: bool = self.target.query_row(
                "SELECT EXISTS (SELECT 1 FROM rollouts
                    WHERE rollout_id = ?1 AND +attempt = ?2 AND +state = 'done')",
                params![id, attempt],
                |row| row.get(0),
            )?;
            if is_the_result {
                incomplete.insert(id.clone(), "a model call of it is lost");
            }
        }
        let mut select = self.target.prepare(
            "SELECT rollout_id FROM rollouts AS r
             WHERE ?1 AND +state = 'done' AND model_calls > (SELECT count(*) FROM calls AS c
                WHERE c.rollout_id = r.rollout_id AND c.attempt = r.attempt AND +c.purpose = 'policy')",
        )?;
        let fewer = select.query_map([self.lost_call_rows], |row| row.get::<_, String>(0))?;
        for id in fewer {
            incomplete
                .entry(id?)
                .or_insert("model calls of it are lost");
        }
        drop(select);
        for (id, why) in incomplete {
            RolloutId::new(id.clone())?;
            self.put_back(&id, why)?;
        }
        Ok(())
    }
}
