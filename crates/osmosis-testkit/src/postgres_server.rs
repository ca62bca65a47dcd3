//! A PostgreSQL server of a test's own: in a temporary folder, on a Unix socket in it, with no port (unless a test asks for
//! one, with encryption).
//!
//! It ends with the test, also when the test is killed: a shell stands above it that waits for its input to end. What
//! `initdb` makes is kept in the target folder and copied. As root it runs as the user `postgres` or `nobody`, because
//! PostgreSQL refuses root.

#![expect(clippy::panic, reason = "a test that has no server can't go on")]

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use crate::waiting::wait_until;

const SOON: Duration = Duration::from_mins(1);

/// Waits for the end of its input, then ends the server and takes its folder away if it was told to.
const GUARD: &str = r#"
trap '' INT TERM HUP
"$@" >>"$FOLDER/log" 2>&1 </dev/null &
server=$!
read -r last
kill -QUIT $server 2>/dev/null
wait $server
[ "$last" = keep ] || rm -rf "$FOLDER"
"#;

/// Local roles have passwords, but the owner of everything.
const ACCESS: &str = "local all postgres trust\nlocal all all scram-sha-256\n";

/// A server that runs.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    programs: PathBuf,
    /// `None` while it is stopped.
    guard: Mutex<Option<Child>>,
    /// Where it listens beside the socket.
    listens: Mutex<Option<SocketAddr>>,
}

impl PostgresServer {
    #[track_caller]
    pub fn start() -> Self {
        let programs = programs();
        let template = template(&programs);
        let folder = new_folder();
        run(Command::new("cp")
            .arg("-a")
            .arg(&template)
            .arg(folder.join("data")));
        let server = Self {
            folder,
            programs,
            guard: Mutex::new(None),
            listens: Mutex::new(None),
        };
        server.start_again();
        server
    }

    /// The URL of its database, as the owner of everything.
    pub fn url(&self) -> String {
        self.url_as("postgres", "postgres")
    }

    /// The URL of a database as a role, which may have a password (`role:password`).
    pub fn url_as(&self, role: &str, database: &str) -> String {
        format!(
            "postgres://{role}@/{database}?host={}",
            self.folder.display()
        )
    }

    /// Starts it again with an address, where it takes encrypted connections alone, with this certificate and key. They
    /// need no password. The socket is of no more use.
    #[track_caller]
    pub fn listen_encrypted(&self, address: SocketAddr, certificate: &Path, key: &Path) {
        self.crash();
        let data = self.folder.join("data");
        for (from, name) in [(certificate, "server.crt"), (key, "server.key")] {
            let to = data.join(name);
            run(Command::new("cp").arg(from).arg(&to));
            run(Command::new("chmod").arg("600").arg(&to));
            if let Some(user) = server_user() {
                run(Command::new("chown").arg(user).arg(&to));
            }
        }
        let access = "hostssl all all all trust\n";
        fs::write(data.join("pg_hba.conf"), access).unwrap_or_else(|error| panic!("{error}"));
        *self
            .listens
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(address);
        self.start_again();
    }

    /// The folder of its socket.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Ends it at once, as a crash would: what was not committed is gone, what was is recovered from the log.
    #[track_caller]
    pub fn crash(&self) {
        let guard = self
            .guard
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take();
        let Some(mut guard) = guard else { return };
        if let Some(mut input) = guard.stdin.take() {
            use std::io::Write as _;
            let _ = input.write_all(b"keep\n");
        }
        let _ = guard.wait();
    }

    /// Starts it again after [`Self::crash`].
    #[track_caller]
    pub fn start_again(&self) {
        let data = self.folder.join("data");
        let owner = data.metadata().map_or(0, |metadata| metadata.uid());
        let mut program = Command::new("sh");
        program.args(["-c", GUARD, "guard"]);
        if is_root() {
            program.args(["setpriv", "--clear-groups"]);
            program.arg(format!("--reuid={owner}"));
        }
        program
            .arg(self.programs.join("postgres"))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&self.folder)
            .args([
                "-h",
                "",
                "-c",
                "max_connections=200",
                "-c",
                "shared_buffers=32MB",
            ])
            .env("FOLDER", &self.folder);
        let listens = *self
            .listens
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(address) = listens {
            program.args(["-c", "ssl=on", "-h", &address.ip().to_string()]);
            program.args(["-p", &address.port().to_string()]);
        }
        program
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let guard = program
            .spawn()
            .unwrap_or_else(|error| panic!("`sh`: {error}"));
        *self
            .guard
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(guard);
        wait_until(&format!("{} is ready", self.folder.display()), SOON, || {
            // The last line says how far it is.
            let status = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
            status
                .lines()
                .nth(7)
                .is_some_and(|line| line.trim() == "ready")
        });
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let mut guard = self
            .guard
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        match guard.take() {
            Some(mut guard) => {
                drop(guard.stdin.take());
                let _ = guard.wait();
            }
            None => {
                let _ = fs::remove_dir_all(&self.folder);
            }
        }
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

/// The user that runs the server when we are root.
fn server_user() -> Option<&'static str> {
    if !is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let known = |name: &str| {
        users
            .lines()
            .any(|line| line.starts_with(&format!("{name}:")))
    };
    Some(if known("postgres") {
        "postgres"
    } else {
        "nobody"
    })
}

/// Where `postgres` and `initdb` are; Debian has them in no path.
#[track_caller]
fn programs() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders
        .into_iter()
        .find(|folder| folder.join("postgres").exists() && folder.join("initdb").exists())
        .unwrap_or_else(|| {
            panic!("PostgreSQL is missing: `apt-get install postgresql`, or `cargo xtask ci --only postgresql`")
        })
}

/// A folder that the server's user may write to.
#[track_caller]
fn new_folder() -> PathBuf {
    let made = Command::new("mktemp")
        .args(["-d", "-t", "osmosis-pg.XXXXXX"])
        .output()
        .unwrap_or_else(|error| panic!("`mktemp`: {error}"));
    let folder = PathBuf::from(String::from_utf8_lossy(&made.stdout).trim());
    if let Some(user) = server_user() {
        run(Command::new("chown").arg(user).arg(&folder));
    }
    folder
}

/// What `initdb` makes, made once.
#[track_caller]
fn template(programs: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"),
        PathBuf::from,
    );
    let version = Command::new(programs.join("postgres"))
        .arg("--version")
        .output()
        .map(|output| {
            String::from_utf8_lossy(&output.stdout)
                .trim()
                .replace([' ', '(', ')'], "-")
        })
        .unwrap_or_default();
    let template = target.join(format!("postgres-template-{version}"));
    let _ = fs::create_dir_all(&target);
    let lock = File::create(target.join("postgres-template.lock"))
        .unwrap_or_else(|error| panic!("{}: {error}", target.display()));
    lock.lock()
        .unwrap_or_else(|error| panic!("{}: {error}", target.display()));
    if template.exists() {
        return template;
    }
    let folder = new_folder();
    let data = folder.join("data");
    let mut initdb = match server_user() {
        None => Command::new(programs.join("initdb")),
        Some(user) => {
            let mut program = Command::new("setpriv");
            program.args(["--clear-groups", &format!("--reuid={user}")]);
            program.arg(programs.join("initdb"));
            program
        }
    };
    run(initdb
        .args([
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--wal-segsize=1",
            "-D",
        ])
        .arg(&data)
        .current_dir("/"));
    fs::write(data.join("pg_hba.conf"), ACCESS).unwrap_or_else(|error| panic!("{error}"));
    // Whole or not at all, also on another file system.
    let half = target.join("postgres-template-half");
    let _ = fs::remove_dir_all(&half);
    run(Command::new("cp").arg("-a").arg(&data).arg(&half));
    fs::rename(&half, &template).unwrap_or_else(|error| panic!("{error}"));
    let _ = fs::remove_dir_all(&folder);
    template
}

#[track_caller]
fn run(program: &mut Command) {
    let ended = program
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{program:?}: {error}"));
    assert!(
        ended.status.success(),
        "{program:?}: {}",
        String::from_utf8_lossy(&ended.stderr)
    );
}
