//! What agents leave behind: processes that left their worker's group, their parent, or both.

/// The Python function `leave`, which starts three processes and returns their pids: one in the group of its
/// caller, one in a session of its own, and a daemon that was forked twice.
pub const LEAVE: &str = r#"
import os, subprocess

def leave():
    grouped = subprocess.Popen(["sleep", "1000"]).pid
    session = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
    answer, question = os.pipe()
    first = os.fork()
    if first == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(question, str(os.getpid()).encode())
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
    os.waitpid(first, 0)
    return [grouped, session, int(os.read(answer, 32))]
"#;

/// The Python function `leave_bare`, which starts a process that nothing leads back to: in a session of its own, an
/// orphan, and without a variable. One is a copy of its caller, the other another program.
pub const LEAVE_BARE: &str = r#"
import os, time

def leave_bare():
    answer, question = os.pipe()
    for copy in (True, False):
        first = os.fork()
        if first == 0:
            os.setsid()
            if os.fork() == 0:
                os.write(question, f"{os.getpid()} ".encode())
                if copy:
                    time.sleep(1000)
                os.execve("/bin/sleep", ["sleep", "1000"], {})
            os._exit(0)
        os.waitpid(first, 0)
    pids = b""
    while pids.count(b" ") < 2:
        pids += os.read(answer, 64)
    return [int(pid) for pid in pids.split()]
"#;

/// Whether a process is there. One that has ended and waits to be reaped is not.
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().unwrap_or("");
        !state.trim_start().starts_with('Z')
    })
}
