//! A full-text index of a run's transcripts: which rollouts say something, never what they say.
//!
//! It is made on demand in a file of its own and can be deleted at any time. The texts themselves are not in it
//! (FTS5 without content): the store stays the only copy.

use camino::{Utf8Path, Utf8PathBuf};
use osmosis_store::StoreError;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::private::create_private_file;
use crate::sql::sqlite_error;

/// Another number makes every index anew.
const FORMAT: i64 = 1;

/// One rollout to be found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedRollout {
    pub row_index: u64,
    pub run_index: u32,
    /// Which result of it: one that was run again is indexed again.
    pub finished_at_ms: i64,
    /// Everything that was said.
    pub text: String,
    /// Names of the tools that were called.
    pub tools: String,
}

/// Where a search looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SearchedText {
    Everything,
    ToolNames,
}

/// The index of one run.
#[derive(Debug)]
pub struct TextIndex {
    path: Utf8PathBuf,
    connection: Connection,
}

impl TextIndex {
    /// Opens the index, and makes it when it isn't there, is of another format or can't be read.
    pub fn open(path: &Utf8Path) -> Result<Self, StoreError> {
        if let Ok(index) = Self::try_open(path) {
            return Ok(index);
        }
        // It holds nothing that the run does not.
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{path}{suffix}"));
        }
        Self::try_open(path)
    }

    fn try_open(path: &Utf8Path) -> Result<Self, StoreError> {
        create_private_file(path).map_err(|error| StoreError::io(path, &error))?;
        let failed = |error: &rusqlite::Error| sqlite_error(path, error);
        let connection = Connection::open(path).map_err(|error| failed(&error))?;
        let prepare = || -> rusqlite::Result<bool> {
            connection.busy_timeout(std::time::Duration::from_secs(10))?;
            connection.pragma_update(None, "synchronous", "OFF")?;
            let format: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
            if format == FORMAT {
                return Ok(true);
            }
            if format != 0 {
                return Ok(false);
            }
            connection.execute_batch(
                "BEGIN IMMEDIATE;
                 CREATE TABLE IF NOT EXISTS rollouts (
                    document        INTEGER PRIMARY KEY,
                    row_index       INTEGER NOT NULL,
                    run_index       INTEGER NOT NULL,
                    finished_at_ms  INTEGER NOT NULL,
                    UNIQUE (row_index, run_index)
                 ) STRICT;
                 CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5(
                    text, tools, content = '', contentless_delete = 1,
                    tokenize = 'unicode61 remove_diacritics 2');
                 COMMIT;",
            )?;
            connection.pragma_update(None, "user_version", FORMAT)?;
            Ok(true)
        };
        match prepare() {
            Ok(true) => Ok(Self {
                path: path.to_owned(),
                connection,
            }),
            Ok(false) => Err(StoreError::refused("the index has another format")),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Whether this result of a rollout is indexed.
    pub fn has(
        &self,
        row_index: u64,
        run_index: u32,
        finished_at_ms: i64,
    ) -> Result<bool, StoreError> {
        let found: Option<i64> = self
            .connection
            .prepare_cached(
                "SELECT finished_at_ms FROM rollouts WHERE row_index = ?1 AND run_index = ?2",
            )
            .and_then(|mut select| {
                let key = params![row_index.cast_signed(), run_index];
                select.query_row(key, |row| row.get(0)).optional()
            })
            .map_err(|error| sqlite_error(&self.path, &error))?;
        Ok(found == Some(finished_at_ms))
    }

    pub fn count(&self) -> Result<u64, StoreError> {
        self.connection
            .query_row("SELECT count(*) FROM rollouts", [], |row| row.get(0))
            .map(i64::cast_unsigned)
            .map_err(|error| sqlite_error(&self.path, &error))
    }

    /// Adds rollouts, and replaces earlier results of them.
    pub fn add(&mut self, rollouts: &[IndexedRollout]) -> Result<(), StoreError> {
        let path = &self.path;
        let add = |connection: &mut Connection| -> rusqlite::Result<()> {
            let transaction = connection.transaction()?;
            for rollout in rollouts {
                let key = params![rollout.row_index.cast_signed(), rollout.run_index];
                let earlier: Option<i64> = transaction
                    .prepare_cached(
                        "SELECT document FROM rollouts WHERE row_index = ?1 AND run_index = ?2",
                    )?
                    .query_row(key, |row| row.get(0))
                    .optional()?;
                if let Some(document) = earlier {
                    transaction.execute("DELETE FROM texts WHERE rowid = ?1", [document])?;
                    transaction.execute("DELETE FROM rollouts WHERE document = ?1", [document])?;
                }
                transaction
                    .prepare_cached(
                        "INSERT INTO rollouts (row_index, run_index, finished_at_ms) VALUES (?1, ?2, ?3)",
                    )?
                    .execute(params![
                        rollout.row_index.cast_signed(),
                        rollout.run_index,
                        rollout.finished_at_ms
                    ])?;
                let document = transaction.last_insert_rowid();
                transaction
                    .prepare_cached("INSERT INTO texts (rowid, text, tools) VALUES (?1, ?2, ?3)")?
                    .execute(params![document, rollout.text, rollout.tools])?;
            }
            transaction.commit()
        };
        add(&mut self.connection).map_err(|error| sqlite_error(path, &error))
    }

    /// The rollouts that say these words in this order; the last word may be the beginning of one. In order of row and
    /// run index. Nothing for a text without a letter or digit.
    pub fn search(
        &self,
        text: &str,
        searched: SearchedText,
    ) -> Result<Vec<(u64, u32)>, StoreError> {
        if !text.chars().any(char::is_alphanumeric) {
            return Ok(vec![]);
        }
        // A phrase in quotes: nothing in it has a meaning for FTS5 but the quotes themselves.
        let phrase = format!("\"{}\"*", text.replace(['"', '\0'], " "));
        let query = match searched {
            SearchedText::Everything => phrase,
            SearchedText::ToolNames => format!("tools : {phrase}"),
        };
        let find = || -> rusqlite::Result<Vec<(u64, u32)>> {
            let mut select = self.connection.prepare_cached(
                "SELECT row_index, run_index FROM texts JOIN rollouts ON document = texts.rowid
                 WHERE texts MATCH ?1 ORDER BY row_index, run_index",
            )?;
            let found = select.query_map([&query], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
            })?;
            found.collect()
        };
        find().map_err(|error| sqlite_error(&self.path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rollout(row_index: u64, finished_at_ms: i64, text: &str, tools: &str) -> IndexedRollout {
        IndexedRollout {
            row_index,
            run_index: 0,
            finished_at_ms,
            text: text.to_owned(),
            tools: tools.to_owned(),
        }
    }

    fn index() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().join("x.db")).unwrap();
        (folder, path)
    }

    #[test]
    fn words_are_found_in_order_and_whatever_they_contain() {
        let (_folder, path) = index();
        let mut index = TextIndex::open(&path).unwrap();
        index
            .add(&[
                rollout(0, 1, "the answer is forty-two", "multiply"),
                rollout(1, 1, "is the answer \"here\"? foo_bar(1)", "search"),
            ])
            .unwrap();
        let everywhere = |text: &str| index.search(text, SearchedText::Everything).unwrap();
        assert_eq!(everywhere("the answer is"), [(0, 0)]);
        assert_eq!(everywhere("ANSW"), [(0, 0), (1, 0)]);
        assert_eq!(everywhere("foo_bar(1"), [(1, 0)]);
        assert_eq!(everywhere("\"here\"?"), [(1, 0)]);
        for nothing in ["", "\"", "*", "NEAR(", "answer OR search AND"] {
            assert_eq!(everywhere(nothing), [], "{nothing}");
        }
        let by_tool = |text: &str| index.search(text, SearchedText::ToolNames).unwrap();
        assert_eq!(by_tool("multiply"), [(0, 0)]);
        assert_eq!(by_tool("answer"), []);
    }

    #[test]
    fn a_rollout_that_was_run_again_is_found_by_its_new_text_alone() {
        let (_folder, path) = index();
        let mut index = TextIndex::open(&path).unwrap();
        index.add(&[rollout(3, 1, "old", "")]).unwrap();
        assert!(index.has(3, 0, 1).unwrap() && !index.has(3, 0, 2).unwrap());
        index.add(&[rollout(3, 2, "new", "")]).unwrap();
        assert_eq!(index.search("old", SearchedText::Everything).unwrap(), []);
        assert_eq!(
            index.search("new", SearchedText::Everything).unwrap(),
            [(3, 0)]
        );
        assert_eq!(index.count().unwrap(), 1);
    }

    #[test]
    fn a_file_that_is_no_index_is_replaced() {
        let (_folder, path) = index();
        std::fs::write(
            &path,
            "not a database, and longer than the head of one is, by some bytes",
        )
        .unwrap();
        let mut index = TextIndex::open(&path).unwrap();
        index.add(&[rollout(0, 1, "a", "")]).unwrap();
        drop(index);
        assert_eq!(TextIndex::open(&path).unwrap().count().unwrap(), 1);
    }
}
