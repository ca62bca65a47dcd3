use std::ops::Range;

use osmosis_core::config::{ColumnUse, DatasetColumns};
use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::schema::types::{Type, TypePtr};

use super::value::Kind;
use crate::json_string::push_json_string;
use crate::table::{Table, wrong_type};
use crate::{ColumnProblem, Taking};

/// Structs in lists in structs: beyond this it is no data.
const MAX_DEPTH: usize = 50;

const TOO_DEEP: &str = "what is nested deeper than 50 levels";
const _: () = assert!(MAX_DEPTH == 50, "the text names it");

/// How the columns of a file make up its rows.
pub(super) struct Shape {
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
    /// The definition level from which on it is not null.
    pub(super) def: i16,
    /// How many lists it is in.
    pub(super) rep: i16,
    /// The columns of the lowest level that it is made of; at least one.
    pub(super) leaves: Range<usize>,
    pub(super) node: Node,
}

pub(super) enum Node {
    Leaf(Kind),
    Struct(Vec<Field>),
    List(Box<Field>),
    Map { key: Box<Field>, value: Box<Field> },
}

impl Shape {
    pub(super) fn of(
        schema: &Type,
        taking: Taking,
        names: &DatasetColumns,
    ) -> Result<Self, Vec<ColumnProblem>> {
        let mut problems = Vec::new();
        let mut columns = Vec::new();
        let mut leaf = 0;
        for column in schema.get_fields() {
            let mut walk = Walk {
                path: Vec::new(),
                leaf,
            };
            match walk.field(column, 0, 0) {
                Ok(field) => columns.push(field),
                Err(problem) => problems.push(problem),
            }
            leaf += count_leaves(column);
        }
        for column in &mut columns {
            let name = column.name.clone();
            let name = match names.use_of(&name) {
                ColumnUse::LeftOut => {
                    column.left_out = true;
                    continue;
                }
                ColumnUse::ReadAs(ours) => {
                    column.key.clear();
                    push_json_string(&mut column.key, ours);
                    ours
                }
                ColumnUse::Kept(name) => name,
            };
            if taking == Taking::Columns
                && let Some(json_type) = json_type(column)
            {
                problems.extend(wrong_type(name, json_type));
            }
        }
        problems.dedup();
        let there: Vec<String> = schema
            .get_fields()
            .iter()
            .map(|column| column.name().to_owned())
            .collect();
        match Table::of(&there, taking, names) {
            Ok(table) if problems.is_empty() => Ok(Self { table, columns }),
            Ok(_) => Err(problems),
            Err(more) => {
                problems.extend(more);
                Err(problems)
            }
        }
    }
}

/// What a column's values are in JSON; `None` for what says nothing.
fn json_type(field: &Field) -> Option<&'static str> {
    match &field.node {
        Node::Leaf(Kind::Null) => None,
        Node::Leaf(kind) => Some(kind.json_type()),
        Node::Struct(_) | Node::Map { .. } => Some("an object"),
        Node::List(_) => Some("an array"),
    }
}

fn count_leaves(ty: &Type) -> usize {
    match ty {
        Type::PrimitiveType { .. } => 1,
        Type::GroupType { fields, .. } => fields.iter().map(|field| count_leaves(field)).sum(),
    }
}

struct Walk {
    path: Vec<String>,
    /// The next one to be met.
    leaf: usize,
}

impl Walk {
    /// A field whose parent is at these levels.
    fn field(&mut self, ty: &Type, def: i16, rep: i16) -> Result<Field, ColumnProblem> {
        self.path.push(ty.name().to_owned());
        if self.path.len() > MAX_DEPTH {
            return Err(self.unsupported(TOO_DEEP));
        }
        let start = self.leaf;
        let (def, node) = match repetition(ty) {
            Repetition::REQUIRED => (def, self.node(ty, def, rep)?),
            Repetition::OPTIONAL => (def + 1, self.node(ty, def + 1, rep)?),
            // Repeated outside of a list: a list all the same, which can't be null.
            Repetition::REPEATED => {
                let node = self.node(ty, def + 1, rep + 1)?;
                let element = self.finish(ty, def + 1, rep + 1, start, node)?;
                (def, Node::List(Box::new(element)))
            }
        };
        let field = self.finish(ty, def, rep, start, node)?;
        self.path.pop();
        Ok(field)
    }

    fn finish(
        &self,
        ty: &Type,
        def: i16,
        rep: i16,
        start: usize,
        node: Node,
    ) -> Result<Field, ColumnProblem> {
        if self.leaf == start {
            return Err(self.unsupported("a struct without fields"));
        }
        let mut key = String::new();
        push_json_string(&mut key, ty.name());
        Ok(Field {
            name: self.path.join("."),
            key,
            left_out: false,
            def,
            rep,
            leaves: start..self.leaf,
            node,
        })
    }

    /// What is inside a field that is at these levels itself.
    fn node(&mut self, ty: &Type, def: i16, rep: i16) -> Result<Node, ColumnProblem> {
        let fields = match ty {
            Type::PrimitiveType { .. } => {
                self.leaf += 1;
                let kind = Kind::of(ty).map_err(|found| self.unsupported(found))?;
                return Ok(Node::Leaf(kind));
            }
            Type::GroupType { fields, .. } => fields,
        };
        match annotation(ty) {
            Annotation::List => self.list(fields, def, rep),
            Annotation::Map => self.map(fields, def, rep),
            Annotation::None => {
                let fields = fields.iter().map(|field| self.field(field, def, rep));
                Ok(Node::Struct(fields.collect::<Result<_, _>>()?))
            }
            Annotation::Variant => Err(self.unsupported("variants")),
        }
    }

    fn list(&mut self, fields: &[TypePtr], def: i16, rep: i16) -> Result<Node, ColumnProblem> {
        let [repeated] = fields else {
            return Err(self.unsupported("a malformed list"));
        };
        if repetition(repeated) != Repetition::REPEATED {
            return Err(self.unsupported("a malformed list"));
        }
        let start = self.leaf;
        let element = match repeated.as_ref() {
            Type::GroupType { fields, .. } if !is_element(repeated, fields, &self.path) => {
                // The usual three levels: the group in between has no meaning.
                let [element] = fields.as_slice() else {
                    return Err(self.unsupported("a malformed list"));
                };
                self.field(element, def + 1, rep + 1)?
            }
            Type::GroupType { .. } | Type::PrimitiveType { .. } => {
                let node = self.node(repeated, def + 1, rep + 1)?;
                self.finish(repeated, def + 1, rep + 1, start, node)?
            }
        };
        Ok(Node::List(Box::new(element)))
    }

    fn map(&mut self, fields: &[TypePtr], def: i16, rep: i16) -> Result<Node, ColumnProblem> {
        let pair = match fields {
            [pair] if repetition(pair) == Repetition::REPEATED => pair,
            _ => return Err(self.unsupported("a malformed map")),
        };
        let (key, value) = match pair.as_ref() {
            Type::GroupType { fields, .. } => match fields.as_slice() {
                [key, value] => (key, value),
                _ => return Err(self.unsupported("a map without values")),
            },
            Type::PrimitiveType { .. } => return Err(self.unsupported("a malformed map")),
        };
        let key = self.field(key, def + 1, rep + 1)?;
        if !matches!(key.node, Node::Leaf(_)) {
            return Err(self.unsupported("a map whose keys are no texts"));
        }
        let value = self.field(value, def + 1, rep + 1)?;
        Ok(Node::Map {
            key: Box::new(key),
            value: Box::new(value),
        })
    }

    fn unsupported(&self, found: &'static str) -> ColumnProblem {
        ColumnProblem::Unsupported {
            column: self.path.join("."),
            found,
        }
    }
}

/// The rules for lists of older writers, from the format's specification.
fn is_element(repeated: &Type, fields: &[TypePtr], path: &[String]) -> bool {
    let [only] = fields else { return true };
    let tuple = path.last().map(|list| format!("{list}_tuple"));
    repetition(only) == Repetition::REPEATED
        || repeated.name() == "array"
        || Some(repeated.name()) == tuple.as_deref()
}

enum Annotation {
    None,
    List,
    Map,
    Variant,
}

fn annotation(ty: &Type) -> Annotation {
    let info = ty.get_basic_info();
    match (info.logical_type_ref(), info.converted_type()) {
        (Some(LogicalType::List), _) | (None, ConvertedType::LIST) => Annotation::List,
        (Some(LogicalType::Map), _) | (None, ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE) => {
            Annotation::Map
        }
        (Some(LogicalType::Variant(_)), _) => Annotation::Variant,
        _ => Annotation::None,
    }
}

fn repetition(ty: &Type) -> Repetition {
    let info = ty.get_basic_info();
    // Only the root has none.
    if info.has_repetition() {
        info.repetition()
    } else {
        Repetition::REQUIRED
    }
}
