//! Too little of everything: descriptors, memory, disk; and a clock that jumps.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use rand::RngExt as _;

use super::{LIMIT, Round, wait_for_workers};
use crate::torture::faults::{Fault, Victim};
use crate::torture::invariants::Invariant;

const ROWS: u32 = 24;

impl Round<'_> {
    pub(in crate::torture) fn limits(&mut self) -> Result<()> {
        self.workspace.rows((0..ROWS).map(|n| {
            let word = if n % 4 == 0 { "memory" } else { "say" };
            (format!("{word} {n}"), n.to_string())
        }))?;
        let evaluation = "n = 2\nagent_workflow_timeout_s = 20\ngrader_timeout_s = 20";
        self.workspace
            .eval_config("script:policies/p.toml", evaluation)?;
        let mut accepted = BTreeMap::new();
        for life in 0..2 {
            let mut engine = self.start(&mut self.workspace.eval(&[]), Victim::Eval)?;
            wait_for_workers(&mut engine);
            for _ in 0..2 {
                self.wait_up_to(Duration::from_millis(400));
                if engine.is_running() && life == 0 {
                    self.take_descriptors(&engine);
                } else if engine.is_running() {
                    self.take_memory(&engine);
                }
            }
            // It goes on with what it has, or ends and says why. It does not hang.
            let ended = engine.wait(LIMIT);
            self.check(Invariant::EndsWhenAsked, ended.is_some(), || {
                format!("without descriptors or memory: {}", engine.errors())
            });
            drop(engine);
            accepted.extend(self.accepted(&self.workspace.run_folder("evals"))?);
        }
        self.complete(&mut self.workspace.eval(&[]), Victim::Eval)?;
        let run = self.workspace.run_folder("evals");
        // An agent without memory fails, and rightly so; but it has one result.
        self.check_results(&run, 2 * ROWS as usize, &accepted)?;
        Ok(())
    }

    pub(in crate::torture) fn disk(&mut self) -> Result<()> {
        self.rows_to_say()?;
        self.workspace
            .eval_config("script:policies/p.toml", "n = 2")?;
        let kilobytes = self.random.random_range(300..1200);
        let disk = match SmallDisk::mount(self.workspace.runs(), kilobytes) {
            Ok(disk) => disk,
            Err(error) => {
                self.table
                    .skip("full disk", format!("no tmpfs can be mounted: {error:#}"));
                return Ok(());
            }
        };
        let mut engine = self.start(&mut self.workspace.eval(&[]), Victim::Eval)?;
        let ended = engine.wait(LIMIT);
        self.check(Invariant::EndsWhenAsked, ended.is_some(), || {
            "on a full disk it neither goes on nor ends".to_owned()
        });
        if disk.is_full() || engine.errors().contains("No space left") {
            self.table.injected(Fault::DiskFull);
        }
        drop(engine);
        let before = self.accepted(&self.workspace.run_folder("evals"))?;
        disk.enlarge()?;
        self.complete_and_check(&before)?;
        disk.unmount()
    }

    pub(in crate::torture) fn clock(&mut self) -> Result<()> {
        let Some(library) = self.machine.faketime.clone() else {
            let why = "libfaketime is not installed (Debian: `faketime`)";
            self.table.skip("jump of the wall clock", why.to_owned());
            return Ok(());
        };
        self.rows_to_say()?;
        self.workspace
            .eval_config("script:policies/p.toml", "n = 2")?;
        let clock = self.folder.join("clock");
        let set = |offset: i64| std::fs::write(&clock, format!("{offset:+}"));
        set(0)?;
        let before = {
            let mut command = self.workspace.eval(&[]);
            command
                .env("LD_PRELOAD", &library)
                .env("FAKETIME_TIMESTAMP_FILE", &clock)
                .env("FAKETIME_CACHE_DURATION", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
                .env("DONT_FAKE_MONOTONIC", "1");
            let mut engine = self.start(&mut command, Victim::Eval)?;
            for _ in 0..3 {
                self.wait_up_to(Duration::from_millis(1500));
                let hours = self.random.random_range(-72..72);
                set(hours * 3600)?;
                if engine.is_running() {
                    self.table.injected(Fault::ClockJump);
                }
            }
            let ended = engine.wait(LIMIT);
            self.check(Invariant::EndsWhenAsked, ended.is_some(), || {
                format!("with a clock that jumps: {}", engine.errors())
            });
            drop(engine);
            self.accepted(&self.workspace.run_folder("evals"))?
        };
        self.complete_and_check(&before)
    }
}

/// A file system that is soon full. It is unmounted when it is dropped.
#[derive(Debug)]
struct SmallDisk {
    place: Utf8PathBuf,
    mounted: bool,
}

impl SmallDisk {
    fn mount(place: Utf8PathBuf, kilobytes: u32) -> Result<Self> {
        std::fs::create_dir_all(&place)?;
        let size = format!("size={kilobytes}k,mode=0700");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs", place.as_str()]))?;
        Ok(Self {
            place,
            mounted: true,
        })
    }

    fn is_full(&self) -> bool {
        rustix::fs::statvfs(self.place.as_std_path())
            .is_ok_and(|about| about.f_bavail * about.f_frsize < 64 << 10)
    }

    fn enlarge(&self) -> Result<()> {
        let options = ["-o", "remount,size=512m", self.place.as_str()];
        run(Command::new("mount").args(options))
    }

    /// Keeps what is on it, for whoever looks at a violation.
    fn unmount(mut self) -> Result<()> {
        let kept = Utf8PathBuf::from(format!("{}-kept", self.place));
        run(Command::new("cp").args(["-a", self.place.as_str(), kept.as_str()]))?;
        self.mounted = false;
        unmount(&self.place)?;
        std::fs::remove_dir(&self.place)?;
        Ok(std::fs::rename(&kept, &self.place)?)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.mounted {
            // The check for mounts tells when it is still there.
            let _ = unmount(&self.place);
        }
    }
}

fn unmount(place: &Utf8Path) -> Result<()> {
    run(Command::new("umount").arg(place))
}

fn run(command: &mut Command) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{}", command.get_program().display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{}: {said}", command.get_program().display());
    }
    Ok(())
}
