//! The bodies of model calls, read from the segments.

use std::sync::LazyLock;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use osmosis_core::{RolloutId, SampleId};
use osmosis_store::authenticity::{MAC_BYTES, RecordKey, is_same_mac};
use osmosis_store::encoding::{MAX_CHAIN, Shared, part_token_records};
use osmosis_store::{CallBody, CallPurpose, CallVisitor, StoreError};
use rusqlite::{Connection, Row, params};

use crate::calls::{COLUMN_COUNT, COLUMNS, call, shown_attempt};
use crate::segment::{Place, SegmentReader};
use crate::sql::{SqlError, number, optional_number, to_sql};

/// Where the bodies of a call are, and how they are told.
struct Stored {
    request: Place,
    response: Place,
    base_call_id: Option<i64>,
    shared: Shared,
    request_bytes: usize,
    response_bytes: usize,
    tokens: Option<Place>,
    token_records: usize,
    macs: BodyMacs,
}

/// Where bodies are read, and the key that they are authenticated with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodySource<'s> {
    pub(crate) segments: &'s Utf8Path,
    pub(crate) key: Option<&'s RecordKey>,
}

/// The same for a task.
#[derive(Debug, Clone)]
pub(crate) struct OwnedBodySource {
    pub(crate) segments: Utf8PathBuf,
    pub(crate) key: Option<RecordKey>,
}

impl OwnedBodySource {
    pub(crate) fn source(&self) -> BodySource<'_> {
        BodySource {
            segments: &self.segments,
            key: self.key.as_ref(),
        }
    }
}

/// Which body of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BodyPart {
    Request,
    Response,
    Tokens,
}

/// What the column `body_macs` says. The row's own MAC covers it.
pub(crate) type BodyMacs = Option<Vec<u8>>;

/// Reads bodies from segments and compares each with its MAC.
pub(crate) struct BodyReader<'s> {
    segments: SegmentReader<'s>,
    source: BodySource<'s>,
}

impl<'s> BodyReader<'s> {
    pub(crate) fn new(source: BodySource<'s>) -> Self {
        Self {
            segments: SegmentReader::new(source.segments),
            source,
        }
    }

    pub(crate) fn read(
        &mut self,
        place: Place,
        part: BodyPart,
        macs: &BodyMacs,
    ) -> Result<Vec<u8>, SqlError> {
        let body = self.segments.read(place)?;
        let Some(key) = self.source.key else {
            return Ok(body);
        };
        let first = part as usize * MAC_BYTES;
        let mac = macs
            .as_ref()
            .and_then(|macs| macs.get(first..first + MAC_BYTES));
        if mac.is_some_and(|mac| is_same_mac(mac, &key.body(&[&body]))) {
            return Ok(body);
        }
        let Place { segment, offset } = place;
        Err(StoreError::Altered {
            path: self.source.segments.to_owned(),
            records: vec![format!("segment {segment}, the body at {offset}")],
            more: 0,
        }
        .into())
    }
}

pub(crate) fn body(
    connection: &Connection,
    source: BodySource<'_>,
    call_id: u64,
) -> Result<Option<CallBody>, SqlError> {
    Bodies::new(connection, source).read(call_id)
}

/// Shows every call of a purpose that `calls::calls` would list for each rollout to `visit`.
pub(crate) fn visit(
    connection: &Connection,
    source: BodySource<'_>,
    ids: &[RolloutId],
    purpose: CallPurpose,
    mut visit: CallVisitor,
) -> Result<(), SqlError> {
    // One look at the database costs less than many.
    let _snapshot = connection.unchecked_transaction()?;
    let mut bodies = Bodies::new(connection, source);
    let mut select = connection.prepare_cached(&SELECT_WITH_PLACES)?;
    for id in ids {
        let Some(attempt) = shown_attempt(connection, id)? else {
            continue;
        };
        let mut rows = select.query(params![id.as_str(), attempt, purpose.as_str()])?;
        while let Some(row) = rows.next()? {
            let call = call(row)?;
            let body = bodies.read_at(call.call_id, Stored::read(row, COLUMN_COUNT)?)?;
            visit(&call, &body);
        }
    }
    Ok(())
}

/// A call and where its bodies are, in one query: two take half as long again.
static SELECT_WITH_PLACES: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {COLUMNS}, {PLACES} FROM calls
         WHERE rollout_id = ?1 AND attempt = ?2 AND +purpose = ?3 ORDER BY call_id"
    )
});

/// Reads bodies, one after the other.
pub(super) struct Bodies<'s> {
    connection: &'s Connection,
    segments: BodyReader<'s>,
    /// The last call and its request, which the next one likely extends.
    last: Option<(i64, Bytes)>,
}

impl<'s> Bodies<'s> {
    pub(super) fn new(connection: &'s Connection, source: BodySource<'s>) -> Self {
        Self {
            connection,
            segments: BodyReader::new(source),
            last: None,
        }
    }

    pub(super) fn read(&mut self, call_id: u64) -> Result<Option<CallBody>, SqlError> {
        let id = to_sql(call_id)?;
        let Some(wanted) = stored(self.connection, id)? else {
            return Ok(None);
        };
        self.read_at(call_id, wanted).map(Some)
    }

    fn read_at(&mut self, call_id: u64, wanted: Stored) -> Result<CallBody, SqlError> {
        let id = to_sql(call_id)?;
        let response = self
            .segments
            .read(wanted.response, BodyPart::Response, &wanted.macs)?;
        if response.len() != wanted.response_bytes {
            return Err(SqlError::Senseless(format!(
                "the response of call {call_id} has the wrong length"
            )));
        }
        let tokens = match wanted.tokens {
            None => Vec::new(),
            Some(place) => {
                let tokens = self.segments.read(place, BodyPart::Tokens, &wanted.macs)?;
                part_token_records(tokens.into(), wanted.token_records)
                    .ok_or_else(|| senseless_tokens(call_id))?
            }
        };
        let request = self.request(call_id, wanted)?;
        self.last = Some((id, request.clone()));
        Ok(CallBody {
            request,
            response: response.into(),
            tokens,
        })
    }

    /// From the call back to one whose request is known or stored whole, then forward again.
    fn request(&mut self, call_id: u64, wanted: Stored) -> Result<Bytes, SqlError> {
        let mut chain = vec![wanted];
        let mut request = Bytes::new();
        while let Some(base) = chain.last().and_then(|last| last.base_call_id) {
            if let Some((_, known)) = self.last.as_ref().filter(|(id, _)| *id == base) {
                request = known.clone();
                break;
            }
            if chain.len() > MAX_CHAIN as usize {
                return Err(SqlError::Senseless(format!(
                    "call {call_id} is told by too many others"
                )));
            }
            chain.push(stored(self.connection, base)?.ok_or_else(|| {
                SqlError::Senseless(format!(
                    "call {base} is missing, which call {call_id} extends"
                ))
            })?);
        }
        for link in chain.iter().rev() {
            let middle = self
                .segments
                .read(link.request, BodyPart::Request, &link.macs)?;
            request = link
                .shared
                .join(&request, &middle)
                .filter(|request| request.len() == link.request_bytes)
                .ok_or_else(|| {
                    SqlError::Senseless(format!(
                        "the request of call {call_id} does not fit together"
                    ))
                })?
                .into();
        }
        Ok(request)
    }
}

/// What [`Stored::read`] reads, in its order.
const PLACES: &str = "segment, request_offset, response_offset, base_call_id, shared_prefix_bytes, \
     shared_suffix_bytes, request_bytes, response_bytes, tokens_offset, token_records, body_macs";

static SELECT_PLACES: LazyLock<String> =
    LazyLock::new(|| format!("SELECT {PLACES} FROM calls WHERE call_id = ?1"));

fn stored(connection: &Connection, call_id: i64) -> Result<Option<Stored>, SqlError> {
    let mut select = connection.prepare_cached(&SELECT_PLACES)?;
    let mut rows = select.query([call_id])?;
    match rows.next()? {
        None => Ok(None),
        Some(row) => Stored::read(row, 0).map(Some),
    }
}

impl Stored {
    /// A row that has [`PLACES`] from its column `first` on.
    fn read(row: &Row<'_>, first: usize) -> Result<Self, SqlError> {
        let segment = number(row, first)?;
        let place = |offset| Place { segment, offset };
        Ok(Self {
            request: place(number(row, first + 1)?),
            response: place(number(row, first + 2)?),
            base_call_id: row.get(first + 3)?,
            shared: Shared {
                prefix: number(row, first + 4)?,
                suffix: number(row, first + 5)?,
            },
            request_bytes: number(row, first + 6)?,
            response_bytes: number(row, first + 7)?,
            tokens: optional_number(row, first + 8)?.map(place),
            token_records: number(row, first + 9)?,
            macs: row.get(first + 10)?,
        })
    }
}

/// The token records of the policy's calls in the attempt that `calls::calls` would list.
pub(crate) fn token_records(
    connection: &Connection,
    source: BodySource<'_>,
    id: &RolloutId,
) -> Result<Vec<(SampleId, Bytes)>, SqlError> {
    let Some(attempt) = shown_attempt(connection, id)? else {
        return Ok(Vec::new());
    };
    let mut select = connection.prepare_cached(
        "SELECT call_id, sample_id, segment, tokens_offset, token_records, body_macs FROM calls
         WHERE rollout_id = ?1 AND attempt = ?2 AND tokens_offset IS NOT NULL AND +purpose = 'policy'
         ORDER BY call_id",
    )?;
    let mut rows = select.query(params![id.as_str(), attempt])?;
    let mut segments = BodyReader::new(source);
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let sample = SampleId::new(row.get::<_, String>(1)?)?;
        let place = Place {
            segment: number(row, 2)?,
            offset: number(row, 3)?,
        };
        let tokens = segments.read(place, BodyPart::Tokens, &row.get(5)?)?;
        let Some(of_call) = part_token_records(tokens.into(), number(row, 4)?) else {
            return Err(senseless_tokens(number(row, 0)?));
        };
        records.extend(of_call.into_iter().map(|record| (sample.clone(), record)));
    }
    Ok(records)
}

fn senseless_tokens(call_id: u64) -> SqlError {
    SqlError::Senseless(format!(
        "the token records of call {call_id} do not fit together"
    ))
}
