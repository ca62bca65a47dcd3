//! The guard itself. It runs nothing of the user's and holds nothing but the worker.

use std::ffi::OsString;
use std::process::ExitCode;

#[cfg(not(target_os = "linux"))]
pub(super) fn run(_arguments: Vec<OsString>) -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
pub(super) fn run(arguments: Vec<OsString>) -> ExitCode {
    use super::protocol::Settings;
    // The token passes through here, and whoever could trace a guard could keep it from its work.
    super::hide_from_other_processes();
    let Ok((settings, program, arguments)) = Settings::parse(arguments) else {
        return ExitCode::from(2);
    };
    if linux::stand_apart().is_err() {
        return ExitCode::FAILURE;
    }
    // One thread, so that it is the parent of the worker for as long as the guard is there.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return ExitCode::FAILURE;
    };
    match runtime.block_on(linux::guard(settings, &program, &arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{OsStr, OsString};
    use std::fs::OpenOptions;
    use std::io::Write as _;
    use std::os::fd::AsFd;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use rustix::process::{
        Pid, Signal, getpid, set_child_subreaper, set_parent_process_death_signal, setpgid, setsid,
    };
    use rustix::stdio::{dup2_stderr, dup2_stdout};
    use rustix::thread::set_no_new_privs;
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio::net::UnixStream;
    use tokio::signal::unix::{SignalKind, signal};

    use super::super::descendants::{self, Children, Process};
    use super::super::protocol::{Order, Report, Settings};
    use crate::launcher::{apply_limits, token_pipe};
    use crate::pool::remove_abandoned_folder;
    use crate::process_group::checked_pid;
    use crate::variables::DEBUG_VARIABLE;

    /// How often we look again for what was left by what we have killed.
    const LOOK_AGAIN: Duration = Duration::from_millis(20);

    /// What has not ended by then can't be ended: it is another user's, or the kernel holds it.
    const END_LIMIT: Duration = Duration::from_secs(10);

    /// How long the lock of an engine that was killed may take to go.
    const LOCK_LIMIT: Duration = Duration::from_secs(2);

    /// Begins a session, which can be left and never joined: so the engine tells what comes from below a guard from
    /// what it started itself. The debugger needs the session that has the terminal.
    pub(super) fn stand_apart() -> rustix::io::Result<()> {
        match std::env::var_os(DEBUG_VARIABLE) {
            None => setsid().map(drop),
            // Ctrl-C is for the engine.
            Some(_) => setpgid(None, None),
        }
    }

    pub(super) async fn guard(
        settings: Settings,
        program: &OsStr,
        arguments: &[OsString],
    ) -> std::io::Result<()> {
        // The connection ends with the engine; so says the kernel too, should it stay open.
        let mut told = signal(SignalKind::terminate())?;
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut hung_up = signal(SignalKind::hangup())?;
        let mut child_ended = signal(SignalKind::child())?;
        set_parent_process_death_signal(Some(Signal::TERM))?;
        set_child_subreaper(Some(getpid()))?;

        let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let reports = socket.try_clone()?;
        let mut orders = BufReader::new(UnixStream::from_std(socket)?).lines();

        let token = if settings.has_token {
            Some(orders.next_line().await?.unwrap_or_default())
        } else {
            None
        };
        let worker = match start(&settings, program, arguments, token) {
            Ok(worker) => worker,
            Err(error) => {
                report(
                    &reports,
                    &Report::NotStarted {
                        message: error.to_string(),
                    },
                );
                return Err(error);
            }
        };
        report(&reports, &Report::Started { pid: raw(worker) });
        let mut orphans = Orphans {
            worker: raw(worker),
            kept: Vec::new(),
            sweeping_until: None,
        };
        loop {
            tokio::select! {
                order = orders.next_line() => match order {
                    Ok(Some(line)) => match Order::parse(&line) {
                        Some(Order::Keep) => orphans.keep(),
                        Some(Order::Sweep) => orphans.sweeping_until = Some(Instant::now() + END_LIMIT),
                        Some(Order::End) => {
                            end_everything(worker, &reports).await;
                            return Ok(());
                        }
                        // A newer engine's; it can do without.
                        None => {}
                    },
                    Ok(None) | Err(_) => break,
                },
                _ = told.recv() => break,
                _ = interrupted.recv() => break,
                _ = hung_up.recv() => break,
                _ = child_ended.recv() => {}
                () = tokio::time::sleep(LOOK_AGAIN), if orphans.sweeping_until.is_some() => {}
            }
            if reap(worker, &reports).worker_ended {
                break;
            }
            orphans.sweep();
        }
        end_everything(worker, &reports).await;
        if let Some(folder) = &settings.folder
            && engine_is_gone(&mut orders).await
        {
            // Its lock goes with it, at its very end.
            let until = Instant::now() + LOCK_LIMIT;
            while !remove_abandoned_folder(folder) && Instant::now() < until {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
        Ok(())
    }

    fn start(
        settings: &Settings,
        program: &OsStr,
        arguments: &[OsString],
        token: Option<String>,
    ) -> std::io::Result<Pid> {
        let input = match token {
            Some(token) => token_pipe(&token)?,
            None => Stdio::null(),
        };
        let mut command = Command::new(program);
        command.args(arguments).stdin(input).process_group(0);
        if let Some((uid, gid)) = settings.user {
            // The standard library drops the supplementary groups first.
            command.uid(uid).gid(gid);
            // Nothing below us gets other rights from now on, whatever programs with a set-user-id bit there are.
            set_no_new_privs(true)?;
        }
        let child = command.spawn()?;
        let worker =
            checked_pid(child.id()).ok_or_else(|| std::io::Error::other("it has no process id"))?;
        if let Err(error) = apply_limits(settings.limits, worker) {
            if let Some(process) = Process::read(child.id()) {
                descendants::end(&[process]);
            }
            return Err(std::io::Error::other(format!(
                "its limits can't be set: {error}"
            )));
        }
        // What it prints goes on without us, and ends with it.
        let nowhere = OpenOptions::new().write(true).open("/dev/null")?;
        dup2_stdout(&nowhere)?;
        dup2_stderr(&nowhere)?;
        Ok(worker)
    }

    /// The children of ours that are not the worker.
    struct Orphans {
        worker: u32,
        /// They came from the import of the entrypoint.
        kept: Vec<Process>,
        /// Set while there is something to end.
        sweeping_until: Option<Instant>,
    }

    impl Orphans {
        fn keep(&mut self) {
            self.kept = descendants::children();
        }

        /// Kills those that a process of the worker's left. What they leave is met the next time.
        fn sweep(&mut self) {
            let Some(until) = self.sweeping_until else {
                return;
            };
            let mut found = descendants::children();
            found.retain(|process| {
                process.pid != self.worker
                    && !self
                        .kept
                        .iter()
                        .any(|kept| (kept.pid, kept.began) == (process.pid, process.began))
            });
            if found.is_empty() || Instant::now() > until {
                self.sweeping_until = None;
            }
            descendants::end(&found);
        }
    }

    /// What is left after the children that have ended were collected.
    struct Left {
        children: bool,
        /// The worker was among those that have ended.
        worker_ended: bool,
    }

    fn reap(worker: Pid, reports: &std::os::unix::net::UnixStream) -> Left {
        let mut worker_ended = false;
        loop {
            match descendants::reap() {
                Children::Ended(pid, status) if pid == worker => {
                    report(reports, &Report::Ended(status));
                    worker_ended = true;
                }
                Children::Ended(..) => {}
                left @ (Children::Living | Children::None) => {
                    return Left {
                        children: left == Children::Living,
                        worker_ended,
                    };
                }
            }
        }
    }

    /// Kills all that is below us, until nobody is left, not even to be collected.
    async fn end_everything(worker: Pid, reports: &std::os::unix::net::UnixStream) {
        let until = Instant::now() + END_LIMIT;
        while reap(worker, reports).children && Instant::now() < until {
            descendants::end(&descendants::all_children());
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Whether the connection has ended without an order to end.
    async fn engine_is_gone(orders: &mut tokio::io::Lines<BufReader<UnixStream>>) -> bool {
        loop {
            let order = tokio::time::timeout(LOOK_AGAIN, orders.next_line()).await;
            match order {
                Ok(Ok(Some(line))) if Order::parse(&line) == Some(Order::End) => return false,
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None) | Err(_)) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Nobody listens when the engine is gone.
    fn report(mut to: &std::os::unix::net::UnixStream, report: &Report) {
        let _ = to.write_all(report.line().as_bytes());
    }

    fn raw(pid: Pid) -> u32 {
        pid.as_raw_nonzero().get().unsigned_abs()
    }
}
