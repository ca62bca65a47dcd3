//! `cargo xtask dist`: what a release consists of. A wheel that installs on any Linux of the last ten years, an archive
//! with the program alone, its debug information, a bill of materials and checksums.

mod sbom;

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::process::Command;

use anyhow::{Context, Result, bail};
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_testkit::python_environment;
use sha2::{Digest, Sha256};

use crate::ci::{command, root};

/// The shells that `osmosis completions` knows, and what their files are called.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "osmosis.bash"),
    ("zsh", "_osmosis"),
    ("fish", "osmosis.fish"),
];

/// What published programs have beyond those that people build.
pub(crate) const PUBLISHED: [&str; 2] = ["--features", "jemalloc"];

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Folder for the files; those of an earlier build are replaced
    #[arg(long, default_value = "dist")]
    out: Utf8PathBuf,
    /// The oldest glibc that the program runs with; Rust's own limit is 2.17
    #[arg(long, default_value = "2.17", value_name = "VERSION")]
    glibc: String,
    /// Link with the compiler of this machine instead of zig; the wheel needs a glibc as new as this machine's
    #[arg(long, conflicts_with = "glibc")]
    native: bool,
    /// The cargo profile; others than `dist` are for trying this command out
    #[arg(long, default_value = "dist")]
    profile: String,
}

#[expect(
    clippy::print_stdout,
    reason = "a command line program reports to the terminal"
)]
pub(crate) fn run(options: &Options) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!("`cargo xtask dist` makes files for Linux, and runs there");
    }
    let root = root()?;
    let out = root.join(&options.out);
    let work = out.join("work");
    for folder in [&work, &out] {
        if folder.exists() {
            remove_files(folder)?;
        }
    }
    fs::create_dir_all(&work).with_context(|| format!("creating {work}"))?;
    let tools = Tools::prepare()?;

    println!("== wheel");
    let built = tools.build_wheel(&root, options, &work)?;
    let unpacked = tools.unpack(&built, &work)?;
    let program = program_in(&unpacked)?;
    let said = output(Command::new(&program).arg("--version"))?;
    let version = said
        .trim()
        .strip_prefix("osmosis ")
        .with_context(|| format!("`--version` printed `{said}`"))?;
    let name = format!("osmosis-{version}-{}-linux", std::env::consts::ARCH);

    println!("== debug information");
    let debug = out.join(format!("{name}.debug"));
    split_debug(&program, &debug)?;
    let wheel = tools.pack(&unpacked, &out)?;
    tools.audit(&wheel)?;

    println!("== archive");
    archive(&root, &program, &name, &work, &out)?;

    println!("== bill of materials");
    let bill = serde_json::to_string_pretty(&sbom::of_program(&root)?)?;
    fs::write(out.join(format!("{name}.cdx.json")), bill + "\n")?;

    fs::remove_dir_all(&work).with_context(|| format!("removing {work}"))?;
    let sums = checksums(&out)?;
    fs::write(out.join("SHA256SUMS"), sums)?;
    println!("\n{out}:");
    for (file, bytes) in files(&out)? {
        println!("{:>10.1} MB  {file}", bytes as f64 / 1e6);
    }
    Ok(())
}

/// The programs of `python/requirements-dist.txt`.
struct Tools(Utf8PathBuf);

impl Tools {
    fn prepare() -> Result<Self> {
        let python = python_environment::dist_python();
        let folder = python.parent().context("an interpreter without a folder")?;
        Ok(Self(folder.to_owned()))
    }

    /// A command that finds these programs first; zig is one of them.
    fn command(&self, program: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(self.0.join(program));
        command.env("PATH", format!("{}:{path}", self.0));
        command
    }

    fn build_wheel(
        &self,
        root: &Utf8Path,
        options: &Options,
        work: &Utf8Path,
    ) -> Result<Utf8PathBuf> {
        let wheels = work.join("wheel");
        let mut build = self.command("maturin");
        build
            .current_dir(root)
            .args(["build", "--locked", "--profile", &options.profile])
            .args(PUBLISHED)
            .args(["--out", wheels.as_str()]);
        if !options.native {
            let tag = format!("manylinux_{}", options.glibc.replace('.', "_"));
            build.args(["--zig", "--compatibility", &tag]);
        }
        command(&mut build)?;
        the_only_one(&wheels)
    }

    fn unpack(&self, wheel: &Utf8Path, work: &Utf8Path) -> Result<Utf8PathBuf> {
        let folder = work.join("unpacked");
        let mut unpack = self.command("wheel");
        command(unpack.args(["unpack", "--dest", folder.as_str(), wheel.as_str()]))?;
        the_only_one(&folder)
    }

    /// Writes the wheel anew, with the checksums of what is in it now.
    fn pack(&self, unpacked: &Utf8Path, out: &Utf8Path) -> Result<Utf8PathBuf> {
        let mut pack = self.command("wheel");
        command(pack.args(["pack", "--dest-dir", out.as_str(), unpacked.as_str()]))?;
        let wheels = files(out)?.into_iter().map(|(file, _)| file);
        let wheel = wheels.into_iter().find(|file| {
            Utf8Path::new(file)
                .extension()
                .is_some_and(|extension| extension == "whl")
        });
        Ok(out.join(wheel.context("`wheel pack` left no wheel")?))
    }

    /// The tag of the wheel is what its program really needs, by PyPI's own measure.
    #[expect(
        clippy::print_stdout,
        reason = "a command line program reports to the terminal"
    )]
    fn audit(&self, wheel: &Utf8Path) -> Result<()> {
        let name = wheel.file_stem().context("a wheel without a name")?;
        let tags = name.rsplit('-').next().unwrap_or_default();
        let said = output(self.command("auditwheel").args(["show", wheel.as_str()]))?;
        let needed = said.split('"').find_map(glibc_of);
        let promised = tags.split('.').filter_map(glibc_of).min();
        let true_to_its_tag = needed
            .zip(promised)
            .is_some_and(|(needed, tag)| needed <= tag);
        if !name.contains("-py3-none-manylinux") || !true_to_its_tag {
            bail!("{wheel} has the tags `{tags}`, and auditwheel says:\n{said}");
        }
        println!("auditwheel agrees: {tags}");
        Ok(())
    }
}

/// The minor version of glibc 2 that a platform tag stands for.
fn glibc_of(tag: &str) -> Option<u32> {
    let version = tag.strip_prefix("manylinux")?;
    if version.starts_with("2014_") {
        return Some(17);
    }
    version.strip_prefix("_2_")?.split('_').next()?.parse().ok()
}

/// The program in an unpacked wheel.
fn program_in(unpacked: &Utf8Path) -> Result<Utf8PathBuf> {
    for entry in unpacked.read_dir_utf8()? {
        let program = entry?.path().join("scripts/osmosis");
        if program.is_file() {
            return Ok(program);
        }
    }
    bail!("no program in {unpacked}")
}

/// Moves the debug information of a program to a file of its own, which debuggers and backtraces find beside it.
fn split_debug(program: &Utf8Path, debug: &Utf8Path) -> Result<()> {
    let objcopy = || Command::new("objcopy");
    command(objcopy().args([
        "--only-keep-debug",
        "--compress-debug-sections",
        program.as_str(),
        debug.as_str(),
    ]))?;
    command(objcopy().args([
        "--strip-all",
        &format!("--add-gnu-debuglink={debug}"),
        program.as_str(),
    ]))
}

/// The program, its completions, its man pages and the licences.
fn archive(
    root: &Utf8Path,
    program: &Utf8Path,
    name: &str,
    work: &Utf8Path,
    out: &Utf8Path,
) -> Result<()> {
    let folder = work.join(name);
    let (completions, man) = (folder.join("completions"), folder.join("man/man1"));
    for made in [&completions, &man] {
        fs::create_dir_all(made).with_context(|| format!("creating {made}"))?;
    }
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE", "CHANGELOG.md"] {
        fs::copy(root.join(file), folder.join(file)).with_context(|| format!("copying {file}"))?;
    }
    fs::copy(program, folder.join("osmosis"))?;
    for (shell, file) in COMPLETIONS {
        let script = output(Command::new(program).args(["completions", shell]))?;
        fs::write(completions.join(file), script)?;
    }
    command(Command::new(program).args(["man", man.as_str()]))?;
    let committed =
        output(
            Command::new("git")
                .current_dir(root)
                .args(["log", "-1", "--format=%ct"]),
        )?;
    // The same files make the same archive, whoever packs them and when.
    command(
        Command::new("tar")
            .current_dir(work)
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"])
            .arg(format!("--mtime=@{}", committed.trim()))
            .args(["-I", "gzip -n"])
            .args(["-cf", out.join(format!("{name}.tar.gz")).as_str(), name]),
    )
}

/// The lines of `SHA256SUMS`, which `sha256sum --check` reads.
fn checksums(folder: &Utf8Path) -> Result<String> {
    let mut lines = String::new();
    for (file, _) in files(folder)? {
        let mut opened = fs::File::open(folder.join(&file))?;
        let mut sum = Sha256::new();
        let mut piece = vec![0; 1 << 20];
        while let read @ 1.. = opened.read(&mut piece)? {
            sum.update(&piece[..read]);
        }
        for byte in sum.finalize() {
            let _ = write!(lines, "{byte:02x}");
        }
        let _ = writeln!(lines, "  {file}");
    }
    Ok(lines)
}

/// The files of a folder by name, with their sizes.
fn files(folder: &Utf8Path) -> Result<Vec<(String, u64)>> {
    let mut found = vec![];
    for entry in folder
        .read_dir_utf8()
        .with_context(|| format!("reading {folder}"))?
    {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() {
            found.push((entry.file_name().to_owned(), metadata.len()));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes what an earlier build left, and nothing else that somebody may keep there.
fn remove_files(folder: &Utf8Path) -> Result<()> {
    if folder.file_name() == Some("work") {
        return fs::remove_dir_all(folder).with_context(|| format!("removing {folder}"));
    }
    for (file, _) in files(folder)? {
        if file == "SHA256SUMS" || file.starts_with("osmosis-") || file.starts_with("osmosis_rs-") {
            fs::remove_file(folder.join(&file)).with_context(|| format!("removing {file}"))?;
        }
    }
    Ok(())
}

fn the_only_one(folder: &Utf8Path) -> Result<Utf8PathBuf> {
    let mut found = folder
        .read_dir_utf8()
        .with_context(|| format!("reading {folder}"))?;
    let first = found
        .next()
        .with_context(|| format!("{folder} is empty"))??;
    if found.next().is_some() {
        bail!("more than one file in {folder}");
    }
    Ok(first.into_path())
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().display().to_string();
    let output = command
        .output()
        .with_context(|| format!("{name} could not be started"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} {}: {said}", output.status);
    }
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_as_sha256sum_reads_them() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        fs::write(folder.join("b"), "abc").unwrap();
        fs::write(folder.join("a"), "").unwrap();
        assert_eq!(
            checksums(folder).unwrap(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n\
             ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n"
        );
    }

    #[test]
    fn tags_are_read_as_versions_of_glibc() {
        let said = "is consistent with\nthe following platform tag: \"manylinux_2_34_x86_64\".";
        assert_eq!(said.split('"').find_map(glibc_of), Some(34));
        assert_eq!(glibc_of("manylinux2014_x86_64"), Some(17));
        assert_eq!(glibc_of("manylinux_2_17_aarch64"), Some(17));
        assert_eq!(glibc_of("linux_x86_64"), None);
    }

    #[test]
    fn files_that_are_not_of_a_build_stay() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        for file in [
            "SHA256SUMS",
            "osmosis-0.1.0-x86_64-linux.debug",
            "notes.txt",
        ] {
            fs::write(folder.join(file), "").unwrap();
        }
        remove_files(folder).unwrap();
        assert_eq!(files(folder).unwrap(), [("notes.txt".to_owned(), 0)]);
    }
}
