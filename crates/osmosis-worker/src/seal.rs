//! Files that must stay as they were while workers run: the code that is imported, and what imports it.
//!
//! A [`Seal`] notes size, times and inode of every file when it is made, and looks again before each process that is
//! started and at the end of the run. The time of the last change of an inode can't be set by a program, so that a file
//! that was rewritten and put back is found, too.
//!
//! Environments get new bytecode while they are used, also by other programs. What is new is compiled again and
//! compared: it counts as changed if it is not what its source says.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;

use crate::variables;

/// Where Python keeps compiled modules.
const BYTECODE_FOLDER: &str = "__pycache__";

/// What can be imported: a new file of another kind changes nothing.
const IMPORTABLE: [&str; 4] = ["py", "so", "pth", "pyc"];

/// Names of files that change are shown up to this many.
const MOST_NAMED: usize = 10;

/// Compares bytecode with its source; prints what differs. Compiled modules of other interpreters are not ours to read,
/// and ours does not read them either.
const CHECK_BYTECODE: &str = "\
import importlib.util, json, marshal, sys
def differs(file):
    source = importlib.util.source_from_cache(file)
    for level, name in ((0, ''), (1, 1), (2, 2)):
        if file == importlib.util.cache_from_source(source, optimization=name):
            code = compile(open(source, 'rb').read(), source, 'exec', dont_inherit=True, optimize=level)
            with open(file, 'rb') as compiled:
                compiled.seek(16)
                return marshal.load(compiled) != code
    return False
found = []
for file in json.load(sys.stdin):
    try:
        bad = differs(file)
    except FileNotFoundError:
        bad = False
    except Exception:
        bad = True
    if bad:
        found.append(file)
json.dump(found, sys.stdout)
";

/// What a seal looks at.
#[derive(Debug, Clone)]
pub enum Sealed {
    /// These files, and nothing beside them.
    Files(Vec<Utf8PathBuf>),
    /// Everything below a folder; nothing may be added.
    Folder(Utf8PathBuf),
    /// Everything below a folder of an interpreter: only what can be imported counts among new files.
    Packages(Utf8PathBuf),
}

impl Sealed {
    fn is_packages(&self) -> bool {
        matches!(self, Self::Packages(_))
    }
}

/// Files that are not as they were.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.describe())]
pub struct Unsealed {
    /// Sorted, each with what became of it.
    pub files: Vec<(Utf8PathBuf, Change)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    Added,
    Changed,
    Removed,
}

impl Unsealed {
    fn describe(&self) -> String {
        let named = self.files.iter().take(MOST_NAMED).map(|(file, change)| {
            let what = match change {
                Change::Added => "added",
                Change::Changed => "changed",
                Change::Removed => "removed",
            };
            format!("{what} `{file}`")
        });
        let text = named.collect::<Vec<_>>().join(", ");
        match self.files.len().saturating_sub(MOST_NAMED) {
            0 => text,
            more => format!("{text} and {more} more"),
        }
    }
}

/// Enough of a file to see that it was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: (i64, i64),
    /// When the inode changed last; `None` for a file with several names: installers link files of environments to
    /// their caches, and each new name changes it.
    inode_changed: Option<(i64, i64)>,
    inode: u64,
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            bytes: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode_changed: (metadata.nlink() == 1)
                .then(|| (metadata.ctime(), metadata.ctime_nsec())),
            inode: metadata.ino(),
        }
    }
}

/// A file that was found, and whether it may be new.
#[derive(Debug, Clone, Copy)]
struct Found {
    stamp: Stamp,
    if_new: IfNew,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IfNew {
    Counts,
    Ignored,
    /// It has to be what its source says, also when it was there before.
    Bytecode,
}

/// By path. As text: a path is taken apart to be hashed, and there are tens of thousands.
type Listing = HashMap<String, Found>;

/// Files that were noted, to be compared.
#[derive(Debug)]
pub struct Seal {
    sealed: Vec<Sealed>,
    /// Compiles bytecode again; without one all new bytecode counts.
    python: Option<Utf8PathBuf>,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    listing: Listing,
    /// Packages are part of it.
    has_packages: bool,
}

impl Seal {
    /// Notes how files and folders are now. Packages are noted later: the first process that imports them compiles them.
    pub fn new(sealed: Vec<Sealed>, python: Option<Utf8PathBuf>) -> io::Result<Self> {
        let listing = list(&sealed, false)?;
        let noted = Noted {
            listing,
            has_packages: false,
        };
        Ok(Self {
            sealed,
            python,
            noted: Mutex::new(noted),
        })
    }

    /// Notes how packages are, once the first process has imported the code and before any rollout.
    pub fn note_packages(&self) -> io::Result<()> {
        let mut noted = self.noted.lock();
        if noted.has_packages {
            return Ok(());
        }
        let packages = self.sealed.iter().filter(|one| one.is_packages());
        let packages: Vec<Sealed> = packages.cloned().collect();
        noted.listing.extend(list(&packages, true)?);
        noted.has_packages = true;
        Ok(())
    }

    /// Compares everything with how it was. Reads no file, only what the file system knows of it, unless there is new
    /// bytecode.
    pub fn check(&self) -> Result<(), Unsealed> {
        let mut noted = self.noted.lock();
        let now = match list(&self.sealed, noted.has_packages) {
            Ok(now) => now,
            Err(error) => {
                tracing::warn!(%error, "files that must not change can't be listed");
                Listing::new()
            }
        };
        let noted = &mut noted.listing;
        let mut files = Vec::new();
        let mut bytecode = Vec::new();
        for (file, found) in noted.iter() {
            match now.get(file) {
                None if found.if_new == IfNew::Bytecode => {}
                None => files.push((file.into(), Change::Removed)),
                Some(now) if now.stamp == found.stamp => {}
                Some(now) if now.if_new == IfNew::Bytecode => bytecode.push(file.into()),
                Some(_) => files.push((file.into(), Change::Changed)),
            }
        }
        for (file, found) in now.iter().filter(|(file, _)| !noted.contains_key(*file)) {
            match found.if_new {
                IfNew::Counts => files.push((file.into(), Change::Added)),
                IfNew::Bytecode => bytecode.push(file.into()),
                IfNew::Ignored => {}
            }
        }
        let forged = self.forged(&bytecode);
        for file in bytecode {
            if forged.contains(&file) {
                files.push((file, Change::Changed));
            } else if let Some(found) = now.get(file.as_str()) {
                noted.insert(file.into_string(), *found);
            }
        }
        if files.is_empty() {
            return Ok(());
        }
        files.sort();
        Err(Unsealed { files })
    }

    /// The bytecode that is not what its source says. All of it where nobody can tell.
    fn forged(&self, files: &[Utf8PathBuf]) -> Vec<Utf8PathBuf> {
        let (Some(python), false) = (&self.python, files.is_empty()) else {
            return files.to_vec();
        };
        compare_bytecode(python, files).unwrap_or_else(|error| {
            tracing::warn!(%error, %python, "bytecode can't be compared with its source");
            files.to_vec()
        })
    }
}

fn compare_bytecode(python: &Utf8Path, files: &[Utf8PathBuf]) -> io::Result<Vec<Utf8PathBuf>> {
    // Alone: nothing that an environment could have changed is imported.
    let mut child = Command::new(python)
        .args(["-I", "-S", "-B", "-c", CHECK_BYTECODE])
        .env_clear()
        .envs(variables::for_tools())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(&serde_json::to_vec(files)?)?;
    }
    let output = child.wait_with_output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn list(sealed: &[Sealed], with_packages: bool) -> io::Result<Listing> {
    let mut listing = Listing::new();
    for one in sealed {
        if one.is_packages() && !with_packages {
            continue;
        }
        match one {
            Sealed::Files(files) => {
                for file in files {
                    // What is gone is missing in the listing.
                    if let Ok(metadata) = std::fs::symlink_metadata(file) {
                        let stamp = Stamp::of(&metadata);
                        let if_new = IfNew::Counts;
                        listing.insert(file.to_string(), Found { stamp, if_new });
                    }
                }
            }
            Sealed::Folder(folder) => list_folder(folder, |_, _| IfNew::Counts, &mut listing)?,
            Sealed::Packages(folder) => list_folder(folder, of_package, &mut listing)?,
        }
    }
    Ok(listing)
}

/// What a new file in a package means, by its folder and name.
fn of_package(folder: &Utf8Path, name: &str) -> IfNew {
    let extension = Utf8Path::new(name).extension().unwrap_or_default();
    if folder.file_name() == Some(BYTECODE_FOLDER) {
        return if extension == "pyc" {
            IfNew::Bytecode
        } else {
            IfNew::Ignored
        };
    }
    if IMPORTABLE.contains(&extension) {
        IfNew::Counts
    } else {
        IfNew::Ignored
    }
}

fn list_folder(
    folder: &Utf8Path,
    if_new: fn(&Utf8Path, &str) -> IfNew,
    listing: &mut Listing,
) -> io::Result<()> {
    for entry in folder.read_dir_utf8()? {
        // Names that are no text are no modules.
        let Ok(entry) = entry else { continue };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            match list_folder(entry.path(), if_new, listing) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                listed => listed?,
            }
            continue;
        }
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        let if_new = if_new(folder, entry.file_name());
        let stamp = Stamp::of(&metadata);
        listing.insert(entry.into_path().into_string(), Found { stamp, if_new });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new(files: &[&str]) -> Self {
            let folder = Self(tempfile::tempdir().unwrap());
            for file in files {
                folder.write(file, "as it was");
            }
            folder
        }

        fn path(&self) -> &Utf8Path {
            Utf8Path::from_path(self.0.path()).unwrap()
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    type Attack = fn(&Folder);

    /// What is found after something was done to a folder.
    #[track_caller]
    fn check(sealed: fn(Utf8PathBuf) -> Sealed, attack: Attack, expected: &[(&str, Change)]) {
        let files = ["main.py", "data.json", "linked.py", "__pycache__/old.pyc"];
        let folder = Folder::new(&files);
        let root = folder.path().to_owned();
        fs::hard_link(root.join("linked.py"), root.join("other_name.py")).unwrap();
        let seal = Seal::new(vec![sealed(root.clone())], None).unwrap();
        seal.note_packages().unwrap();
        assert_eq!(seal.check(), Ok(()), "nothing was done yet");
        attack(&folder);
        let found = seal.check().map_or_else(|found| found.files, |()| vec![]);
        let expected: Vec<_> = expected
            .iter()
            .map(|(file, change)| (root.join(file), *change))
            .collect();
        assert_eq!(found, expected);
    }

    fn rewrite_and_put_back(folder: &Folder) {
        let path = folder.path().join("main.py");
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        let text = fs::read(&path).unwrap();
        fs::write(&path, "forged!!!").unwrap();
        fs::write(&path, text).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(time).unwrap();
    }

    #[test]
    fn a_file_that_is_written_replaced_removed_or_put_back_is_found() {
        let changed = &[("main.py", Change::Changed)];
        let removed = &[("main.py", Change::Removed)];
        let attacks: [(Attack, &[(&str, Change)]); 4] = [
            (|folder| folder.write("main.py", "reward = 1.0"), changed),
            (rewrite_and_put_back, changed),
            (
                |folder| {
                    let (from, to) = (folder.path().join("new"), folder.path().join("main.py"));
                    fs::write(&from, "as it was").unwrap();
                    fs::rename(from, to).unwrap();
                },
                changed,
            ),
            (
                |folder| fs::remove_file(folder.path().join("main.py")).unwrap(),
                removed,
            ),
        ];
        for (attack, expected) in attacks {
            check(Sealed::Folder, attack, expected);
            check(Sealed::Packages, attack, expected);
            let alone = |root: Utf8PathBuf| Sealed::Files(vec![root.join("main.py")]);
            check(alone, attack, expected);
        }
    }

    #[test]
    fn what_is_new_counts_where_it_could_be_imported() {
        let add: Attack = |folder| {
            for file in [
                "json.py",
                "notes.txt",
                "lib/x.so",
                "x.pth",
                "__pycache__/x.nbi",
            ] {
                folder.write(file, "new");
            }
        };
        let importable = [
            ("json.py", Change::Added),
            ("lib/x.so", Change::Added),
            ("x.pth", Change::Added),
        ];
        check(Sealed::Packages, add, &importable);
        let all = [
            ("__pycache__/x.nbi", Change::Added),
            ("json.py", Change::Added),
            ("lib/x.so", Change::Added),
            ("notes.txt", Change::Added),
            ("x.pth", Change::Added),
        ];
        check(Sealed::Folder, add, &all);
        check(|root| Sealed::Files(vec![root.join("main.py")]), add, &[]);
    }

    #[test]
    fn another_name_of_a_file_of_an_environment_changes_nothing() {
        let link: Attack = |folder| {
            let root = folder.path();
            fs::hard_link(root.join("linked.py"), root.join("third.txt")).unwrap();
        };
        check(Sealed::Packages, link, &[]);
    }

    #[test]
    fn new_bytecode_must_be_what_its_source_says() {
        let folder = Folder::new(&[]);
        folder.write("grade.py", "REWARD = 0.0\n");
        folder.write(
            "other.py",
            "def f():\n    return float('nan'), -0.0, {1, 2}\n",
        );
        let root = folder.path();
        let python = osmosis_testkit::python_environment::python();
        let seal = Seal::new(
            vec![Sealed::Packages(root.to_owned())],
            Some(python.clone()),
        );
        let seal = seal.unwrap();
        seal.note_packages().unwrap();
        let compile = |script: &str| {
            let mut command = Command::new(&python);
            command.args(["-I", "-c", script]).current_dir(root);
            assert!(command.status().unwrap().success());
        };
        compile("import py_compile as p; p.compile('other.py'); p.compile('grade.py')");
        assert_eq!(seal.check(), Ok(()), "compiled as it is");
        compile(
            "import py_compile as p, os, shutil; s = os.stat('grade.py'); \
             open('forged', 'w').write('REWARD = 1.0\\n'); t = p.compile('forged', cfile='forged.c'); \
             head = open(p.compile('grade.py'), 'rb').read(16); \
             open('__pycache__/' + os.listdir('__pycache__')[0].replace('other', 'grade'), 'wb')\
             .write(head + open(t, 'rb').read()[16:]); os.remove('forged'); os.remove('forged.c')",
        );
        let found = seal.check().unwrap_err();
        assert_eq!(found.files.len(), 1, "{found}");
        assert!(
            found.files[0].0.as_str().contains("__pycache__/grade."),
            "{found}"
        );
    }
}
