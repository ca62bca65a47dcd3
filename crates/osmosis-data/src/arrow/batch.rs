use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::Damage;
use super::flatbuffer::{Table as Fields, Vector};
use super::schema::{Field, Fixed, Node};
use crate::json_string::push_json_string;
use crate::parquet::value::{Fault, half_float, push_decimal, write_int64, write_number};
use crate::{MAX_ROW_BYTES, RowProblem};

/// What is read of a buffer at a time.
const WINDOW_BYTES: usize = 16 * 1024;

/// Some rows of a file, whose values are read when they are asked for.
pub(super) struct Batch {
    columns: Vec<Column>,
    pub(super) rows: u64,
}

/// A column of a batch, or a part of one.
struct Column {
    len: u64,
    /// A bit for each value, not set for null; `None` when there are no nulls.
    validity: Option<Window>,
    data: Data,
}

enum Data {
    None,
    Values(Window),
    Texts { offsets: Window, text: Window },
    List { offsets: Window, child: Box<Column> },
    FixedList { child: Box<Column> },
    Struct(Vec<Column>),
}

/// Why a value is not in its row.
pub(super) enum ValueProblem {
    /// The file can't be read any further.
    Damage(Damage),
    /// The row can't be used, others can.
    Row(RowProblem),
}

impl From<Damage> for ValueProblem {
    fn from(damage: Damage) -> Self {
        Self::Damage(damage)
    }
}

fn broken() -> Damage {
    Damage::new("a record batch is broken")
}

impl Batch {
    /// `body`: where its buffers are in the file, and how many bytes they have.
    pub(super) fn of(
        header: Fields<'_>,
        fields: &[Field],
        body: (u64, u64),
    ) -> Result<Self, Damage> {
        if header.table(3).is_some() {
            return Err(Damage::new("the record batches are compressed"));
        }
        let rows = u64::try_from(header.i64(0).unwrap_or(0)).map_err(|_| broken())?;
        let mut parts = Parts {
            nodes: header.vector(1).ok_or_else(broken)?,
            buffers: header.vector(2),
            next_node: 0,
            next_buffer: 0,
            body,
        };
        let columns = fields
            .iter()
            .map(|field| parts.column(&field.node))
            .collect::<Result<Vec<_>, _>>()?;
        if columns.iter().any(|column| column.len != rows) || (columns.is_empty() && rows > 0) {
            return Err(broken());
        }
        Ok(Self { columns, rows })
    }

    /// Writes a row as a JSON object.
    pub(super) fn write_row(
        &mut self,
        file: &File,
        fields: &[Field],
        row: u64,
        body: &mut String,
    ) -> Result<(), ValueProblem> {
        body.push('{');
        let mut first = true;
        for (column, field) in self.columns.iter_mut().zip(fields) {
            if field.left_out {
                continue;
            }
            if !first {
                body.push(',');
            }
            first = false;
            body.push_str(&field.key);
            body.push(':');
            column.write(file, field, row, body)?;
        }
        body.push('}');
        Ok(())
    }
}

/// What a record batch's description has left.
struct Parts<'a> {
    nodes: Vector<'a>,
    buffers: Option<Vector<'a>>,
    next_node: usize,
    next_buffer: usize,
    body: (u64, u64),
}

impl Parts<'_> {
    fn column(&mut self, node: &Node) -> Result<Column, Damage> {
        let (len, nulls) = self.nodes.pair(self.next_node).ok_or_else(broken)?;
        self.next_node += 1;
        let len = u64::try_from(len).map_err(|_| broken())?;
        // A few bytes must not stand for billions of nulls.
        if len > self.body.1.saturating_mul(8) {
            return Err(Damage::new(
                "a record batch declares more values than it has bits",
            ));
        }
        if let Node::Null = node {
            return Ok(Column {
                len,
                validity: None,
                data: Data::None,
            });
        }
        let validity = self.buffer()?;
        let validity = (nulls != 0 && validity.len > 0).then_some(validity);
        let data = match node {
            Node::Null => Data::None,
            Node::Boolean | Node::Fixed { .. } => Data::Values(self.buffer()?),
            Node::Text { .. } => Data::Texts {
                offsets: self.buffer()?,
                text: self.buffer()?,
            },
            Node::List { element, .. } => Data::List {
                offsets: self.buffer()?,
                child: Box::new(self.column(&element.node)?),
            },
            Node::Map { entry } => Data::List {
                offsets: self.buffer()?,
                child: Box::new(self.column(&entry.node)?),
            },
            Node::FixedList { element, .. } => Data::FixedList {
                child: Box::new(self.column(&element.node)?),
            },
            Node::Struct(fields) => Data::Struct(
                fields
                    .iter()
                    .map(|field| self.column(&field.node))
                    .collect::<Result<_, _>>()?,
            ),
        };
        Ok(Column {
            len,
            validity,
            data,
        })
    }

    fn buffer(&mut self) -> Result<Window, Damage> {
        let buffer = self.buffers.and_then(|all| all.pair(self.next_buffer));
        let (offset, len) = buffer.ok_or_else(broken)?;
        self.next_buffer += 1;
        let offset = u64::try_from(offset).map_err(|_| broken())?;
        let len = u64::try_from(len).map_err(|_| broken())?;
        let (body, body_len) = self.body;
        match offset.checked_add(len) {
            Some(end) if end <= body_len => Ok(Window {
                base: body + offset,
                len,
                start: 0,
                held: Vec::new(),
            }),
            Some(_) | None => Err(broken()),
        }
    }
}

impl Column {
    fn write(
        &mut self,
        file: &File,
        field: &Field,
        index: u64,
        body: &mut String,
    ) -> Result<(), ValueProblem> {
        if body.len() > MAX_ROW_BYTES {
            return Err(ValueProblem::Row(RowProblem::TooLong));
        }
        if index >= self.len {
            return Err(broken().into());
        }
        if let Some(validity) = &mut self.validity
            && !validity.bit(file, index)?
        {
            body.push_str("null");
            return Ok(());
        }
        match (&mut self.data, &field.node) {
            (Data::None, _) => body.push_str("null"),
            (Data::Values(bits), Node::Boolean) => {
                body.push_str(if bits.bit(file, index)? {
                    "true"
                } else {
                    "false"
                });
            }
            (Data::Values(values), Node::Fixed { kind, bytes }) => {
                let at = index.checked_mul(*bytes as u64).ok_or_else(broken)?;
                let value = values.bytes(file, at, *bytes)?;
                let mut padded = [0; 16];
                padded[..*bytes].copy_from_slice(value);
                write_fixed(*kind, *bytes, padded, body)
                    .map_err(|fault| ValueProblem::Row(fault.at(&field.name)))?;
            }
            (Data::Texts { offsets, text }, Node::Text { large }) => {
                let (start, end) = offsets.span(file, index, *large)?;
                let count = usize::try_from(end - start).unwrap_or(usize::MAX);
                if count > MAX_ROW_BYTES {
                    return Err(ValueProblem::Row(RowProblem::TooLong));
                }
                let written = text.with(file, start, count, |bytes| {
                    let text = std::str::from_utf8(bytes).map_err(|_| Fault::NotUtf8)?;
                    push_json_string(body, text);
                    Ok(())
                })?;
                written.map_err(|fault: Fault| ValueProblem::Row(fault.at(&field.name)))?;
            }
            (Data::List { offsets, child }, Node::List { large, element }) => {
                let (start, end) = offsets.span(file, index, *large)?;
                child.write_all(file, element, start..end, body)?;
            }
            (Data::FixedList { child }, Node::FixedList { size, element }) => {
                let start = index.checked_mul(*size).ok_or_else(broken)?;
                let end = start.checked_add(*size).ok_or_else(broken)?;
                child.write_all(file, element, start..end, body)?;
            }
            (Data::List { offsets, child }, Node::Map { entry }) => {
                let span = offsets.span(file, index, false)?;
                child.write_map(file, entry, span.0..span.1, body)?;
            }
            (Data::Struct(columns), Node::Struct(fields)) => {
                body.push('{');
                for (place, (column, field)) in columns.iter_mut().zip(fields).enumerate() {
                    if place > 0 {
                        body.push(',');
                    }
                    body.push_str(&field.key);
                    body.push(':');
                    column.write(file, field, index, body)?;
                }
                body.push('}');
            }
            (_, _) => return Err(broken().into()),
        }
        Ok(())
    }

    fn write_all(
        &mut self,
        file: &File,
        field: &Field,
        range: std::ops::Range<u64>,
        body: &mut String,
    ) -> Result<(), ValueProblem> {
        body.push('[');
        let start = range.start;
        for index in range {
            if index > start {
                body.push(',');
            }
            self.write(file, field, index, body)?;
        }
        body.push(']');
        Ok(())
    }

    fn write_map(
        &mut self,
        file: &File,
        entry: &Field,
        range: std::ops::Range<u64>,
        body: &mut String,
    ) -> Result<(), ValueProblem> {
        let (Data::Struct(columns), Node::Struct(fields)) = (&mut self.data, &entry.node) else {
            return Err(broken().into());
        };
        let ([keys, values], [key, value]) = (columns.as_mut_slice(), fields.as_slice()) else {
            return Err(broken().into());
        };
        body.push('{');
        let first = range.start;
        for index in range {
            if index > first {
                body.push(',');
            }
            let start = body.len();
            keys.write(file, key, index, body)?;
            // JSON has only texts for keys.
            if !body[start..].starts_with('"') {
                body.insert(start, '"');
                body.push('"');
            }
            body.push(':');
            values.write(file, value, index, body)?;
        }
        body.push('}');
        Ok(())
    }
}

/// `value` is the value's bytes, the least significant first, with zeros behind.
fn write_fixed(kind: Fixed, bytes: usize, value: [u8; 16], out: &mut String) -> Result<(), Fault> {
    let bits = u128::from_le_bytes(value);
    // No number but a decimal has more than 64 bits.
    let unsigned = u64::try_from(bits).unwrap_or(u64::MAX);
    let unused = 64u32.saturating_sub(u32::try_from(bytes).unwrap_or(8) * 8);
    let signed = (unsigned << unused).cast_signed() >> unused;
    match kind {
        Fixed::Signed => write_number(signed, out),
        Fixed::Unsigned => write_number(unsigned, out),
        Fixed::Half => write_number(half_float(u16::from_le_bytes([value[0], value[1]])), out),
        Fixed::Single => {
            let [a, b, c, d, ..] = value;
            write_number(f32::from_le_bytes([a, b, c, d]), out)
        }
        Fixed::Double => write_number(f64::from_bits(unsigned), out),
        Fixed::Decimal { scale } => {
            push_decimal(out, bits.cast_signed(), scale);
            Ok(())
        }
        Fixed::Time { kind, times } => {
            let count = signed.checked_mul(times).ok_or(Fault::NoTime)?;
            write_int64(count, kind, out)
        }
        Fixed::DayMilliseconds => {
            let days = signed.div_euclid(86_400_000);
            write_int64(days, crate::parquet::value::Kind::Date, out)
        }
    }
}

/// A buffer in the file, of which a part is held.
struct Window {
    /// Where the buffer is in the file.
    base: u64,
    len: u64,
    /// Where the held part is in the buffer.
    start: u64,
    held: Vec<u8>,
}

impl Window {
    /// A few bytes of the buffer.
    fn bytes(&mut self, file: &File, at: u64, count: usize) -> Result<&[u8], Damage> {
        let end = at.checked_add(count as u64).filter(|end| *end <= self.len);
        let end = end.ok_or_else(broken)?;
        let held_end = self.start + self.held.len() as u64;
        if at < self.start || end > held_end {
            let left = usize::try_from(self.len - at).unwrap_or(usize::MAX);
            self.held.resize(left.min(WINDOW_BYTES.max(count)), 0);
            self.start = at;
            if let Err(error) = file.read_exact_at(&mut self.held, self.base + at) {
                self.held.clear();
                return Err(Damage::of(&error));
            }
        }
        let from = usize::try_from(at - self.start).map_err(|_| broken())?;
        self.held.get(from..from + count).ok_or_else(broken)
    }

    /// As many bytes as there may be; what is larger than the held part is not held.
    fn with<T>(
        &mut self,
        file: &File,
        at: u64,
        count: usize,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, Damage> {
        if count == 0 {
            return Ok(read(&[]));
        }
        if count <= WINDOW_BYTES {
            return self.bytes(file, at, count).map(read);
        }
        let end = at.checked_add(count as u64).filter(|end| *end <= self.len);
        end.ok_or_else(broken)?;
        let mut bytes = vec![0; count];
        file.read_exact_at(&mut bytes, self.base + at)
            .map_err(|error| Damage::of(&error))?;
        Ok(read(&bytes))
    }

    fn bit(&mut self, file: &File, index: u64) -> Result<bool, Damage> {
        let byte = self.bytes(file, index / 8, 1)?;
        Ok(byte
            .first()
            .is_some_and(|byte| byte >> (index % 8) & 1 == 1))
    }

    /// From where to where a value is in what follows.
    fn span(&mut self, file: &File, index: u64, large: bool) -> Result<(u64, u64), Damage> {
        let bytes = if large { 8 } else { 4 };
        let at = index.checked_mul(bytes as u64).ok_or_else(broken)?;
        let both = self.bytes(file, at, 2 * bytes)?;
        let number = |bytes: &[u8]| {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(padded)
        };
        let (start, end) = (number(&both[..bytes]), number(&both[bytes..]));
        // Negative ones are beyond these.
        let most = if large {
            i64::MAX.unsigned_abs()
        } else {
            u64::from(i32::MAX.unsigned_abs())
        };
        if start <= end && end <= most {
            Ok((start, end))
        } else {
            Err(broken())
        }
    }
}
