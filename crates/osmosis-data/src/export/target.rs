use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use camino::Utf8Path;
use tempfile::NamedTempFile;

use crate::DataError;

/// Where an export goes.
pub(super) struct Target {
    /// For errors.
    to: String,
    place: Place,
}

enum Place {
    /// Beside the file it becomes: a name never stands for half an export.
    Pending { file: NamedTempFile, path: PathBuf },
    /// A pipe, a device or what the caller brought.
    Direct(Box<dyn Write + Send>),
}

impl Target {
    pub(super) fn create(path: &Utf8Path) -> Result<Self, DataError> {
        let to = format!("`{path}`");
        match Place::create(path) {
            Ok(place) => Ok(Self { to, place }),
            Err(error) => Err(DataError::Unwritable { to, error }),
        }
    }

    pub(super) fn direct(writer: impl Write + Send + 'static) -> Self {
        Self {
            to: "the output".to_owned(),
            place: Place::Direct(Box::new(writer)),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.to
    }

    /// Makes what was written durable, and gives it its name.
    pub(super) fn commit(self) -> io::Result<()> {
        match self.place {
            Place::Pending { mut file, path } => {
                file.flush()?;
                file.as_file().sync_all()?;
                file.persist(path).map_err(|error| error.error)?;
                Ok(())
            }
            Place::Direct(mut writer) => writer.flush(),
        }
    }
}

impl Place {
    fn create(path: &Utf8Path) -> io::Result<Self> {
        // A link stays a link: what it leads to is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.as_std_path().to_owned());
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
            // To replace `/dev/null` by a file would surprise everybody.
            Ok(metadata) if !metadata.is_file() => {
                return Ok(Self::Direct(Box::new(
                    File::options().write(true).open(path)?,
                )));
            }
            Ok(_) | Err(_) => {}
        }
        let name = path
            .file_name()
            .ok_or(io::ErrorKind::InvalidInput)?
            .to_string_lossy()
            .into_owned();
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            Some(_) | None => PathBuf::from("."),
        };
        let prefix = format!(".{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".partial");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            // What any new file gets; the umask takes its part.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(folder)?;
        Ok(Self::Pending { file, path })
    }
}

impl Write for Target {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match &mut self.place {
            Place::Pending { file, .. } => file.write(buffer),
            Place::Direct(writer) => writer.write(buffer),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.place {
            Place::Pending { file, .. } => file.flush(),
            Place::Direct(writer) => writer.flush(),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.to)
    }
}
