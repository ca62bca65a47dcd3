//! The part of FlatBuffers that Arrow's messages are written in. Every access is checked: a broken file gives
//! `None`, never a panic.

/// A table in a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where its fields are listed, and how many bytes the list has.
    vtable: usize,
    vtable_bytes: usize,
}

/// A vector of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vector<'a> {
    bytes: &'a [u8],
    /// The first item.
    at: usize,
    pub(super) len: usize,
}

impl<'a> Table<'a> {
    /// The message's outermost table.
    pub(super) fn root(bytes: &'a [u8]) -> Option<Self> {
        Self::at(bytes, read_u32(bytes, 0)? as usize)
    }

    fn at(bytes: &'a [u8], at: usize) -> Option<Self> {
        let back = i32::from_le_bytes(array(bytes, at)?);
        let vtable = i64::try_from(at).ok()?.checked_sub(i64::from(back))?;
        let vtable = usize::try_from(vtable).ok()?;
        let vtable_bytes = usize::from(read_u16(bytes, vtable)?);
        Some(Self {
            bytes,
            at,
            vtable,
            vtable_bytes,
        })
    }

    /// Where a field's value is; `None` when it has its default.
    fn field(&self, id: usize) -> Option<usize> {
        let entry = 4 + 2 * id;
        if entry + 2 > self.vtable_bytes {
            return None;
        }
        match read_u16(self.bytes, self.vtable.checked_add(entry)?)? {
            0 => None,
            offset => self.at.checked_add(usize::from(offset)),
        }
    }

    pub(super) fn u8(&self, id: usize) -> Option<u8> {
        self.bytes.get(self.field(id)?).copied()
    }

    pub(super) fn i16(&self, id: usize) -> Option<i16> {
        Some(i16::from_le_bytes(array(self.bytes, self.field(id)?)?))
    }

    pub(super) fn i32(&self, id: usize) -> Option<i32> {
        Some(i32::from_le_bytes(array(self.bytes, self.field(id)?)?))
    }

    pub(super) fn i64(&self, id: usize) -> Option<i64> {
        Some(i64::from_le_bytes(array(self.bytes, self.field(id)?)?))
    }

    pub(super) fn table(&self, id: usize) -> Option<Self> {
        Self::at(self.bytes, self.followed(self.field(id)?)?)
    }

    pub(super) fn text(&self, id: usize) -> Option<&'a str> {
        let vector = self.vector(id)?;
        let end = vector.at.checked_add(vector.len)?;
        std::str::from_utf8(self.bytes.get(vector.at..end)?).ok()
    }

    pub(super) fn vector(&self, id: usize) -> Option<Vector<'a>> {
        let at = self.followed(self.field(id)?)?;
        let len = read_u32(self.bytes, at)? as usize;
        // An item has a byte at least.
        (len <= self.bytes.len()).then_some(Vector {
            bytes: self.bytes,
            at: at + 4,
            len,
        })
    }

    fn followed(&self, at: usize) -> Option<usize> {
        at.checked_add(read_u32(self.bytes, at)? as usize)
    }
}

impl<'a> Vector<'a> {
    /// An item that is a table.
    pub(super) fn table(&self, index: usize) -> Option<Table<'a>> {
        let at = self.item(index, 4)?;
        let table = at.checked_add(read_u32(self.bytes, at)? as usize)?;
        Table::at(self.bytes, table)
    }

    /// An item that is two numbers.
    pub(super) fn pair(&self, index: usize) -> Option<(i64, i64)> {
        let at = self.item(index, 16)?;
        let first = i64::from_le_bytes(array(self.bytes, at)?);
        let second = i64::from_le_bytes(array(self.bytes, at.checked_add(8)?)?);
        Some((first, second))
    }

    fn item(&self, index: usize, size: usize) -> Option<usize> {
        if index >= self.len {
            return None;
        }
        self.at.checked_add(index.checked_mul(size)?)
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(array(bytes, at)?))
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(array(bytes, at)?))
}
