//! A static copy of one run or a comparison, which any web server can serve without us.
//!
//! The page is the same; its documents are files, at the addresses of the API. Secrets are redacted in every one of
//! them: the values of the config's `[secrets]`, of the variables that hold keys of model servers, and our own keys.

mod redaction;
mod site;
mod word_index;

use camino::Utf8PathBuf;
use osmosis_run::reports::{ArtifactKind, Artifacts, RolloutTranscript};
use osmosis_run::workspace::Workspace;
use osmosis_run::{RunError, RunErrorKind};
use serde::{Deserialize, Serialize};

use self::redaction::redactor;
use self::site::Site;
use self::word_index::WordIndex;
use crate::artifact_file;
use crate::assets::{self, Mode};
use crate::documents::Documents;
use crate::response::{self, ListEnvelope};

/// Larger files of agents stay behind; the page says so (`parts/artifacts.js`).
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// What to write, and where.
#[derive(Debug)]
pub struct Export {
    pub workspace: Workspace,
    /// One run, or several that are compared with the first.
    pub runs: Vec<String>,
    pub folder: Utf8PathBuf,
    /// Values to redact besides those of the config.
    pub secrets_file: Option<Utf8PathBuf>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportedSite {
    pub path: Utf8PathBuf,
    pub runs: Vec<String>,
    pub rollouts: u64,
    pub files: u64,
    pub bytes: u64,
}

impl Export {
    /// `progress` is told how many rollouts are written, of how many.
    pub async fn write(
        &self,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<ExportedSite, RunError> {
        let documents = Documents::new(self.workspace.clone());
        let mut opened = vec![];
        for run in &self.runs {
            opened.push(documents.open(run).await?);
        }
        let redactor = redactor(&opened, self.secrets_file.as_deref())?;
        let mut site = Site::new(self.folder.clone(), redactor, &self.workspace)?;
        site.write("index.html", assets::shell(Mode::Exported).as_bytes())?;
        for name in assets::names() {
            let bytes = assets::file(&name).unwrap_or_default();
            site.write(&format!("assets/{name}"), &bytes)?;
        }
        let mut overviews = vec![];
        let mut grids = vec![];
        for run in &self.runs {
            overviews.push(documents.overview(run).await?);
            grids.push(documents.grid(run).await?);
        }
        let list: Vec<_> = overviews.iter().map(AsRef::as_ref).collect();
        site.document("runs", &response::list(&ListEnvelope::whole(list))?)?;
        if self.runs.len() > 1 {
            let names: Vec<&str> = self.runs.iter().map(String::as_str).collect();
            let comparison = documents.compare(&names).await?;
            let path = format!("compare/{}", site::segment(&names.join(",")));
            site.document(&path, &response::data(&comparison)?)?;
        }
        let total = grids.iter().map(|grid| grid.len() as u64).sum();
        let mut done = 0;
        for (run, grid) in self.runs.iter().zip(&grids) {
            let at = format!("runs/{}", site::segment(run));
            let page = documents.run(run).await?;
            site.document(&at, &page)?;
            site.document(&format!("{at}/grid"), &response::data(&**grid)?)?;
            let steps = documents.steps(run).await?;
            for step in &steps.items {
                let document = documents.step(run, step.step).await?;
                site.document(&format!("{at}/steps/{}", step.step), &document)?;
            }
            let steps = ListEnvelope::whole(steps.items);
            site.document(&format!("{at}/steps"), &response::list(&steps)?)?;
            let mut rows = grid.row_index.clone();
            rows.dedup();
            let mut texts = vec![];
            for some in rows.chunks(500) {
                texts.extend(documents.row_texts(run, some).await?.items);
            }
            let texts = ListEnvelope::whole(texts);
            site.document(&format!("{at}/rows"), &response::list(&texts)?)?;
            for row in rows {
                let document = documents.row(run, row).await?;
                site.document(&format!("{at}/rows/{row}"), &document)?;
            }
            let mut index = WordIndex::default();
            for (place, (row, run_index)) in (0..).zip(grid.row_index.iter().zip(&grid.run_index)) {
                let rollout = format!("{row}.{run_index}");
                let (page, transcript) = self
                    .rollout(&documents, &mut site, run, &at, &rollout)
                    .await?;
                index.add(place, &transcript, page.error.as_deref());
                done += 1;
                progress(done, total);
            }
            for (path, words) in index.files() {
                site.document(&format!("{at}/{path}"), &response::data(words)?)?;
            }
        }
        Ok(ExportedSite {
            path: self.folder.clone(),
            runs: self.runs.clone(),
            rollouts: total,
            files: site.files,
            bytes: site.bytes,
        })
    }

    async fn rollout(
        &self,
        documents: &Documents,
        site: &mut Site,
        run: &str,
        at: &str,
        rollout: &str,
    ) -> Result<(WrittenPage, RolloutTranscript), RunError> {
        let at = format!("{at}/rollouts/{rollout}");
        let page = site.document(&at, &documents.rollout(run, rollout).await?)?;
        let transcript = site.document(
            &format!("{at}/transcript"),
            &documents.transcript(run, rollout).await?,
        )?;
        site.document(
            &format!("{at}/tokens"),
            &documents.tokens(run, rollout).await?,
        )?;
        for call in documents.call_places(run, rollout).await? {
            let body = documents.call_body(run, rollout, call).await?;
            site.raw(&format!("{at}/{call}/request"), &body.request)?;
            site.raw(&format!("{at}/{call}/reply"), &body.response)?;
        }
        let page: WrittenPage = read_again(&page)?;
        let folder = documents.artifact_folder(run, rollout).await?;
        for artifact in &page.artifacts.items {
            if !matches!(artifact.kind, ArtifactKind::File { bytes } if bytes <= MOST_BYTES) {
                continue;
            }
            // A file that went away meanwhile is missing there, too.
            if let Ok(bytes) = artifact_file::read(&folder, &artifact.path) {
                let names: Vec<String> = artifact.path.split('/').map(site::segment).collect();
                let path = format!("{at}/artifacts/{}", names.join("/"));
                if response::picture_type(&artifact.path).is_some() {
                    site.picture(&path, &bytes)?;
                } else {
                    site.raw(&path, &bytes)?;
                }
            }
        }
        Ok((page, read_again(&transcript)?))
    }
}

/// What the copy needs of a rollout's page.
#[derive(Debug, Deserialize)]
struct WrittenPage {
    error: Option<String>,
    artifacts: Artifacts,
}

/// A document without its envelope, as it was written: what is redacted there must be in no index either.
fn read_again<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, RunError> {
    #[derive(Deserialize)]
    struct Envelope<T> {
        data: T,
    }
    let envelope: Envelope<T> = serde_json::from_str(text).map_err(|error| {
        RunError::failed(
            RunErrorKind::Internal,
            format!("a document can't be read again: {error}"),
        )
    })?;
    Ok(envelope.data)
}
