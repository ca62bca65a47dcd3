//! Keeps the variables of this process from others.
//!
//! `/proc/PID/environ` shows what a program was started with to every process of its user, whatever it does to its
//! environment later. So the program starts itself again, in the same process, with the variables that workers may see
//! and no others. The rest comes with it in a sealed file in memory, and is put back where the kernel doesn't show it.

#[cfg(target_os = "linux")]
pub use linux::hide;

/// Nothing is hidden on this system.
#[cfg(not(target_os = "linux"))]
pub fn hide() -> std::io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{OsStr, OsString};
    use std::fs::File;
    use std::io::{IoSlice, IoSliceMut, Read as _, Seek as _, Write as _};
    use std::mem::MaybeUninit;
    use std::os::fd::{AsFd as _, OwnedFd};
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;
    use std::os::unix::process::CommandExt as _;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    use osmosis_worker::{guard, variables};
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use rustix::net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    };
    use rustix::stdio::dup2_stdin;

    /// Set when the rest of the variables come by standard input; its value is the process, so that nothing that it
    /// starts takes this for its own.
    const HANDED_ON: &str = "_OSMOSIS_HANDED_ON";

    /// To be called first in `main`, before there are threads. Returns when nothing is left to hide; the program has
    /// started again by then if there was something. Standard input, arguments, process id and signals stay the same.
    pub fn hide() -> std::io::Result<()> {
        guard::hide_from_other_processes();
        let ours = std::process::id().to_string();
        if std::env::var_os(HANDED_ON).is_some_and(|to| to == OsStr::new(&ours)) {
            return restore();
        }
        let (hidden, shown): (Vec<_>, Vec<_>) = std::env::vars_os()
            .filter(|(name, _)| name != HANDED_ON)
            .partition(|(name, value)| is_hidden(name, value));
        if hidden.is_empty() {
            return Ok(());
        }
        Err(start_again(&hidden, shown, &ours))
    }

    /// What can't be written as a line of text stays.
    fn is_hidden(name: &OsStr, value: &OsStr) -> bool {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        };
        value.to_str().is_some()
            && name
                .to_str()
                .is_some_and(|name| is_name(name) && !variables::may_be_shown(name))
    }

    /// Returns only when that fails.
    fn start_again(
        hidden: &[(OsString, OsString)],
        shown: Vec<(OsString, OsString)>,
        ours: &str,
    ) -> std::io::Error {
        let lines = hidden
            .iter()
            .filter_map(|(name, value)| Some(line(name.to_str()?, value.to_str()?)));
        let input = match handed_on(&lines.collect::<String>()) {
            Ok(input) => input,
            Err(error) => return error,
        };
        let mut arguments = std::env::args_os();
        let mut command = Command::new(program());
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command
            .args(arguments)
            .env_clear()
            .envs(shown)
            .env(HANDED_ON, ours)
            .stdin(Stdio::from(input))
            .exec()
    }

    /// This very program. By its name, which is what `ps` shows, while that is still the same file.
    fn program() -> PathBuf {
        let running = PathBuf::from("/proc/self/exe");
        let same = |path: &PathBuf| {
            let (named, running) = (std::fs::metadata(path)?, std::fs::metadata(&running)?);
            Ok::<_, std::io::Error>((named.dev(), named.ino()) == (running.dev(), running.ino()))
        };
        std::env::current_exe()
            .ok()
            .filter(|path| same(path).unwrap_or(false))
            .unwrap_or(running)
    }

    /// `NAME="value"`, as `dotenvy` reads it.
    fn line(name: &str, value: &str) -> String {
        let mut line = format!("{name}=\"");
        for c in value.chars() {
            match c {
                '\n' => line.push_str("\\n"),
                '\\' | '"' | '$' => line.extend(['\\', c]),
                _ => line.push(c),
            }
        }
        line.push_str("\"\n");
        line
    }

    /// A socket to be the next standard input: it holds the present one, and a sealed file with `text`.
    fn handed_on(text: &str) -> std::io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("osmosis-environment", flags)?);
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        fcntl_add_seals(
            &file,
            SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE,
        )?;
        let (ours, theirs) = UnixStream::pair()?;
        let stdin = std::io::stdin();
        let passed = [file.as_fd(), stdin.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&passed));
        sendmsg(
            &ours,
            &[IoSlice::new(b".")],
            &mut control,
            SendFlags::empty(),
        )?;
        Ok(OwnedFd::from(theirs))
    }

    /// Puts the variables back that this program handed on to itself, and its standard input.
    fn restore() -> std::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        recvmsg(
            std::io::stdin().as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut passed = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(passed) => passed.collect(),
            _ => Vec::new(),
        });
        let (Some(file), Some(stdin)) = (passed.next(), passed.next()) else {
            return Err(std::io::Error::other("the environment was not handed on"));
        };
        dup2_stdin(stdin)?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text)?;
        // The one way to set a variable that we have without `unsafe`. It is sound here: there is one thread.
        dotenvy::from_read(text.as_bytes()).map_err(std::io::Error::other)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_value_is_read_as_it_was_written() {
            let values = [
                "",
                " ",
                "plain",
                "a\"b'c\\d$e${HOME}f#g h\ti",
                "two\nlines\r\nand a third\n",
                "ünï\u{2028}cödé=",
                "\\n is no end of a line",
                "# no comment",
            ];
            let text: String = values.iter().map(|value| line("NAME", value)).collect();
            let read: Vec<_> = dotenvy::from_read_iter(text.as_bytes())
                .map(|entry| entry.unwrap())
                .collect();
            let expected = values.map(|value| ("NAME".to_owned(), value.to_owned()));
            assert_eq!(read, expected);
        }

        #[test]
        fn what_workers_may_not_see_is_hidden() {
            let is_hidden = |name: &str| is_hidden(OsStr::new(name), OsStr::new("x"));
            for name in [
                "OPENAI_API_KEY",
                "OSMOSIS_CONTROL_KEY",
                "PGPASSWORD",
                "ANYTHING",
            ] {
                assert!(is_hidden(name), "{name}");
            }
            for name in ["PATH", "HOME", "LLVM_PROFILE_FILE", "BASH_FUNC_x%%"] {
                assert!(!is_hidden(name), "{name}");
            }
        }
    }
}
