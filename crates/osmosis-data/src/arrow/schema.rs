use osmosis_core::config::{ColumnUse, DatasetColumns};

use super::flatbuffer::Table as Fields;
use crate::json_string::push_json_string;
use crate::parquet::value::{Kind, Unit};
use crate::table::{Table, wrong_type};
use crate::{ColumnProblem, Taking};

/// Structs in lists in structs: beyond this it is no data.
const MAX_DEPTH: usize = 50;
const TOO_DEEP: &str = "what is nested deeper than 50 levels";
const _: () = assert!(MAX_DEPTH == 50, "the text names it");

/// Columns and their parts; each holds a window of the file.
pub(super) const MAX_FIELDS: usize = 4096;

/// How the columns of a file make up its rows.
pub(super) struct Schema {
    pub(super) table: Table,
    pub(super) columns: Vec<Field>,
}

/// A column, or a part of one.
pub(super) struct Field {
    /// With those of what it is in, and dots between.
    pub(super) name: String,
    /// The last part of its name, as a JSON string.
    pub(super) key: String,
    /// Another column is read under its name.
    pub(super) left_out: bool,
    pub(super) node: Node,
}

pub(super) enum Node {
    /// Nothing but nulls, and nothing in the file.
    Null,
    Boolean,
    /// Values of one size.
    Fixed {
        kind: Fixed,
        bytes: usize,
    },
    Text {
        large: bool,
    },
    List {
        large: bool,
        element: Box<Field>,
    },
    FixedList {
        size: u64,
        element: Box<Field>,
    },
    Struct(Vec<Field>),
    Map {
        /// Key and value.
        entry: Box<Field>,
    },
}

/// What the bytes of a value mean.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fixed {
    Signed,
    Unsigned,
    Half,
    Single,
    Double,
    /// 128 bits, of which so many digits are behind the point.
    Decimal {
        scale: u32,
    },
    /// A number of units, so many of which make one of `kind`'s.
    Time {
        kind: Kind,
        times: i64,
    },
    /// Milliseconds that are whole days.
    DayMilliseconds,
}

/// Why the description of the columns can't be used.
pub(super) enum SchemaProblem {
    Damaged(&'static str),
    Columns(Vec<ColumnProblem>),
}

impl Schema {
    pub(super) fn of(
        schema: Fields<'_>,
        taking: Taking,
        columns: &DatasetColumns,
    ) -> Result<Self, SchemaProblem> {
        const DAMAGED: SchemaProblem =
            SchemaProblem::Damaged("the description of its columns is broken");
        if schema.i16(0).unwrap_or(0) != 0 {
            return Err(SchemaProblem::Damaged("its numbers are big-endian"));
        }
        let fields = schema.vector(1).ok_or(DAMAGED)?;
        let mut walk = Walk {
            path: Vec::new(),
            fields: 0,
        };
        let mut names = Vec::new();
        let mut found = Vec::new();
        let mut problems = Vec::new();
        for index in 0..fields.len {
            let field = fields.table(index).ok_or(DAMAGED)?;
            names.push(field.text(0).unwrap_or("").to_owned());
            match walk.field(field) {
                Ok(field) => found.push(field),
                Err(WalkProblem::Damaged) => return Err(DAMAGED),
                Err(WalkProblem::TooMany) => {
                    return Err(SchemaProblem::Damaged("it has more than 4,096 columns"));
                }
                Err(WalkProblem::Column(problem)) => problems.push(problem),
            }
            walk.path.clear();
        }
        for field in &mut found {
            let used = columns.use_of(&field.name);
            let (name, key) = match used {
                ColumnUse::LeftOut => {
                    field.left_out = true;
                    continue;
                }
                ColumnUse::ReadAs(ours) => (ours, Some(ours)),
                ColumnUse::Kept(name) => (name, None),
            };
            if taking == Taking::Columns
                && let Some(json_type) = field.node.json_type()
            {
                problems.extend(wrong_type(name, json_type));
            }
            if let Some(key) = key {
                field.key.clear();
                push_json_string(&mut field.key, key);
            }
        }
        match Table::of(&names, taking, columns) {
            Ok(table) if problems.is_empty() => Ok(Self {
                table,
                columns: found,
            }),
            Ok(_) => Err(SchemaProblem::Columns(problems)),
            Err(more) => {
                problems.extend(more);
                Err(SchemaProblem::Columns(problems))
            }
        }
    }
}

impl Node {
    /// As a row's judge would call it; `None` for what says nothing.
    fn json_type(&self) -> Option<&'static str> {
        Some(match self {
            Self::Null => return None,
            Self::Boolean => "a boolean",
            Self::Fixed { kind, .. } => match kind {
                Fixed::Signed | Fixed::Unsigned | Fixed::Half | Fixed::Single | Fixed::Double => {
                    "a number"
                }
                Fixed::Decimal { .. } | Fixed::Time { .. } | Fixed::DayMilliseconds => "a string",
            },
            Self::Text { .. } => "a string",
            Self::List { .. } | Self::FixedList { .. } => "an array",
            Self::Struct(_) | Self::Map { .. } => "an object",
        })
    }
}

enum WalkProblem {
    Damaged,
    TooMany,
    Column(ColumnProblem),
}

struct Walk {
    path: Vec<String>,
    fields: usize,
}

impl Walk {
    fn field(&mut self, field: Fields<'_>) -> Result<Field, WalkProblem> {
        let name = field.text(0).unwrap_or("");
        self.path.push(name.to_owned());
        self.fields += 1;
        if self.path.len() > MAX_DEPTH {
            return Err(self.unsupported(TOO_DEEP));
        }
        if self.fields > MAX_FIELDS {
            return Err(WalkProblem::TooMany);
        }
        let node = self.node(field)?;
        let mut key = String::new();
        push_json_string(&mut key, name);
        let field = Field {
            name: self.path.join("."),
            key,
            left_out: false,
            node,
        };
        self.path.pop();
        Ok(field)
    }

    fn node(&mut self, field: Fields<'_>) -> Result<Node, WalkProblem> {
        if field.table(4).is_some() {
            return Err(self.unsupported("categories of a dictionary"));
        }
        let kind = field.u8(2).unwrap_or(0);
        let of_type = field.table(3);
        let of_type = of_type.ok_or(WalkProblem::Damaged)?;
        let fixed = |kind, bytes| Ok(Node::Fixed { kind, bytes });
        match kind {
            1 => Ok(Node::Null),
            2 => {
                let bytes = match of_type.i32(0).unwrap_or(0) {
                    8 => 1,
                    16 => 2,
                    32 => 4,
                    64 => 8,
                    _ => return Err(WalkProblem::Damaged),
                };
                match of_type.u8(1).unwrap_or(0) {
                    0 => fixed(Fixed::Unsigned, bytes),
                    _ => fixed(Fixed::Signed, bytes),
                }
            }
            3 => match of_type.i16(0).unwrap_or(0) {
                0 => fixed(Fixed::Half, 2),
                1 => fixed(Fixed::Single, 4),
                2 => fixed(Fixed::Double, 8),
                _ => Err(WalkProblem::Damaged),
            },
            5 => Ok(Node::Text { large: false }),
            6 => Ok(Node::Boolean),
            7 => {
                let scale = u32::try_from(of_type.i32(1).unwrap_or(0));
                let digits = of_type.i32(0).unwrap_or(0);
                match (of_type.i32(2).unwrap_or(128), scale) {
                    (128, Ok(scale)) if digits <= 38 && scale <= 38 => {
                        fixed(Fixed::Decimal { scale }, 16)
                    }
                    _ => Err(self.unsupported("decimals of more than 38 digits")),
                }
            }
            8 => match of_type.i16(0).unwrap_or(1) {
                0 => fixed(
                    Fixed::Time {
                        kind: Kind::Date,
                        times: 1,
                    },
                    4,
                ),
                _ => fixed(Fixed::DayMilliseconds, 8),
            },
            9 => {
                let (unit, times) = unit(of_type.i16(0).unwrap_or(1))?;
                let bytes = if of_type.i32(1).unwrap_or(32) == 32 {
                    4
                } else {
                    8
                };
                let kind = Kind::Time(unit);
                fixed(Fixed::Time { kind, times }, bytes)
            }
            10 => {
                let (unit, times) = unit(of_type.i16(0).unwrap_or(0))?;
                let utc = of_type.text(1).is_some_and(|zone| !zone.is_empty());
                let kind = Kind::Timestamp { unit, utc };
                fixed(Fixed::Time { kind, times }, 8)
            }
            12 | 21 => Ok(Node::List {
                large: kind == 21,
                element: Box::new(self.only_child(field)?),
            }),
            13 => Ok(Node::Struct(self.children(field)?)),
            16 => {
                let size = of_type.i32(0).unwrap_or(0);
                Ok(Node::FixedList {
                    size: u64::try_from(size).map_err(|_| WalkProblem::Damaged)?,
                    element: Box::new(self.only_child(field)?),
                })
            }
            17 => {
                let entry = self.only_child(field)?;
                match &entry.node {
                    Node::Struct(fields) if fields.len() == 2 => match fields[0].node {
                        Node::Text { .. } | Node::Boolean | Node::Fixed { .. } => Ok(Node::Map {
                            entry: Box::new(entry),
                        }),
                        _ => Err(self.unsupported("a map whose keys are no texts")),
                    },
                    _ => Err(WalkProblem::Damaged),
                }
            }
            20 => Ok(Node::Text { large: true }),
            4 | 15 | 19 | 23 => Err(self.unsupported("binary data")),
            11 | 18 => Err(self.unsupported("intervals")),
            14 => Err(self.unsupported("unions")),
            22 => Err(self.unsupported("run-end encoded values")),
            24..=26 => Err(self.unsupported("views")),
            _ => Err(WalkProblem::Damaged),
        }
    }

    fn only_child(&mut self, field: Fields<'_>) -> Result<Field, WalkProblem> {
        let children = field.vector(5).ok_or(WalkProblem::Damaged)?;
        if children.len != 1 {
            return Err(WalkProblem::Damaged);
        }
        self.field(children.table(0).ok_or(WalkProblem::Damaged)?)
    }

    fn children(&mut self, field: Fields<'_>) -> Result<Vec<Field>, WalkProblem> {
        let Some(children) = field.vector(5) else {
            return Ok(Vec::new());
        };
        let mut fields = Vec::new();
        for index in 0..children.len {
            let child = children.table(index).ok_or(WalkProblem::Damaged)?;
            fields.push(self.field(child)?);
        }
        Ok(fields)
    }

    fn unsupported(&self, found: &'static str) -> WalkProblem {
        WalkProblem::Column(ColumnProblem::Unsupported {
            column: self.path.join("."),
            found,
        })
    }
}

/// A unit of ours, and how many of it one of the file's is.
fn unit(unit: i16) -> Result<(Unit, i64), WalkProblem> {
    match unit {
        0 => Ok((Unit::Milliseconds, 1000)),
        1 => Ok((Unit::Milliseconds, 1)),
        2 => Ok((Unit::Microseconds, 1)),
        3 => Ok((Unit::Nanoseconds, 1)),
        _ => Err(WalkProblem::Damaged),
    }
}
