use std::fmt::Write as _;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time, date};
use parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use parquet::data_type::Int96;
use parquet::schema::types::Type;

use crate::RowProblem;
use crate::json_string::push_json_string;

/// What the values of a column mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Nothing but nulls.
    Null,
    Boolean,
    Integer,
    /// The bits of a number that is never negative.
    Unsigned,
    Float,
    /// Two bytes.
    HalfFloat,
    Text,
    Uuid,
    Decimal {
        scale: u32,
    },
    Date,
    Time(Unit),
    Timestamp {
        unit: Unit,
        /// A point in time, and not what some clock showed.
        utc: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    Microseconds,
    Nanoseconds,
}

/// More digits than this don't fit the numbers we have.
const MAX_DECIMAL_DIGITS: i32 = 38;

impl Kind {
    /// What a column's type means, or what it holds that JSON has no word for.
    pub(crate) fn of(ty: &Type) -> Result<Self, &'static str> {
        let Type::PrimitiveType {
            basic_info,
            physical_type,
            scale,
            precision,
            ..
        } = ty
        else {
            return Err("a struct");
        };
        let logical = basic_info.logical_type_ref();
        let converted = basic_info.converted_type();
        if matches!(logical, Some(LogicalType::Unknown)) {
            return Ok(Self::Null);
        }
        let is_decimal =
            matches!(logical, Some(LogicalType::Decimal(_))) || converted == ConvertedType::DECIMAL;
        if is_decimal {
            return match u32::try_from(*scale) {
                Ok(scale) if *precision <= MAX_DECIMAL_DIGITS => Ok(Self::Decimal { scale }),
                _ => Err("decimals of more than 38 digits"),
            };
        }
        match physical_type {
            Physical::BOOLEAN => Ok(Self::Boolean),
            Physical::INT32 | Physical::INT64 => Ok(Self::of_integer(logical, converted)),
            Physical::INT96 => Ok(Self::Timestamp {
                unit: Unit::Nanoseconds,
                utc: false,
            }),
            Physical::FLOAT | Physical::DOUBLE => Ok(Self::Float),
            Physical::BYTE_ARRAY => match (logical, converted) {
                (Some(LogicalType::String | LogicalType::Enum | LogicalType::Json), _)
                | (None, ConvertedType::UTF8 | ConvertedType::ENUM | ConvertedType::JSON) => {
                    Ok(Self::Text)
                }
                _ => Err("binary data"),
            },
            Physical::FIXED_LEN_BYTE_ARRAY => match (logical, converted) {
                (Some(LogicalType::Uuid), _) => Ok(Self::Uuid),
                (Some(LogicalType::Float16), _) => Ok(Self::HalfFloat),
                (_, ConvertedType::INTERVAL) => Err("intervals"),
                _ => Err("binary data"),
            },
        }
    }

    fn of_integer(logical: Option<&LogicalType>, converted: ConvertedType) -> Self {
        match (logical, converted) {
            (Some(LogicalType::Date), _) | (None, ConvertedType::DATE) => Self::Date,
            (Some(LogicalType::Time(time)), _) => Self::Time(Unit::of(time.unit)),
            (None, ConvertedType::TIME_MILLIS) => Self::Time(Unit::Milliseconds),
            (None, ConvertedType::TIME_MICROS) => Self::Time(Unit::Microseconds),
            (Some(LogicalType::Timestamp(timestamp)), _) => Self::Timestamp {
                unit: Unit::of(timestamp.unit),
                utc: timestamp.is_adjusted_to_u_t_c,
            },
            (None, ConvertedType::TIMESTAMP_MILLIS) => Self::Timestamp {
                unit: Unit::Milliseconds,
                utc: true,
            },
            (None, ConvertedType::TIMESTAMP_MICROS) => Self::Timestamp {
                unit: Unit::Microseconds,
                utc: true,
            },
            (Some(LogicalType::Integer(integer)), _) if !integer.is_signed => Self::Unsigned,
            (
                None,
                ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64,
            ) => Self::Unsigned,
            _ => Self::Integer,
        }
    }

    /// As a row's judge would call it.
    pub(crate) fn json_type(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Integer | Self::Unsigned | Self::Float | Self::HalfFloat => "a number",
            Self::Text
            | Self::Uuid
            | Self::Decimal { .. }
            | Self::Date
            | Self::Time(_)
            | Self::Timestamp { .. } => "a string",
        }
    }
}

impl Unit {
    fn of(unit: TimeUnit) -> Self {
        match unit {
            TimeUnit::MILLIS => Self::Milliseconds,
            TimeUnit::MICROS => Self::Microseconds,
            TimeUnit::NANOS => Self::Nanoseconds,
        }
    }

    fn duration(self, count: i64) -> SignedDuration {
        match self {
            Self::Milliseconds => SignedDuration::from_millis(count),
            Self::Microseconds => SignedDuration::from_micros(count),
            Self::Nanoseconds => SignedDuration::from_nanos(count),
        }
    }
}

/// A value that can't be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    NotUtf8,
    /// A date or time outside of the calendar.
    NoTime,
    /// Bytes that are no value of the column's type.
    Malformed,
}

impl Fault {
    pub(crate) fn at(self, column: &str) -> RowProblem {
        let what = match self {
            Self::NotUtf8 => "is not UTF-8",
            Self::NoTime => "is no date or time of the years 1 to 9999",
            Self::Malformed => "is not what its column's type says",
        };
        RowProblem::BadValue {
            column: column.to_owned(),
            what,
        }
    }
}

pub(crate) fn write_int32(value: i32, kind: Kind, out: &mut String) -> Result<(), Fault> {
    match kind {
        Kind::Unsigned => push(out, value.cast_unsigned()),
        _ => return write_int64(i64::from(value), kind, out),
    }
    Ok(())
}

pub(crate) fn write_int64(value: i64, kind: Kind, out: &mut String) -> Result<(), Fault> {
    match kind {
        Kind::Unsigned => push(out, value.cast_unsigned()),
        Kind::Decimal { scale } => push_decimal(out, i128::from(value), scale),
        Kind::Date => push_text(out, day(value).ok_or(Fault::NoTime)?),
        Kind::Time(unit) => push_text(out, time(unit.duration(value)).ok_or(Fault::NoTime)?),
        Kind::Timestamp { unit, utc } => push_timestamp(out, unit.duration(value), utc)?,
        Kind::Null
        | Kind::Boolean
        | Kind::Integer
        | Kind::Float
        | Kind::HalfFloat
        | Kind::Text
        | Kind::Uuid => push(out, value),
    }
    Ok(())
}

/// Nanoseconds of a day, and the day in Julian numbers: an old way to write timestamps.
pub(crate) fn write_int96(value: &Int96, out: &mut String) -> Result<(), Fault> {
    const EPOCH: i64 = 2_440_588;
    let [low, high, day] = *value.data() else {
        return Err(Fault::Malformed);
    };
    let nanoseconds = (u64::from(high) << 32) | u64::from(low);
    let nanoseconds = i64::try_from(nanoseconds).map_err(|_| Fault::NoTime)?;
    let day = SignedDuration::from_secs((i64::from(day) - EPOCH) * 86_400);
    let since = day
        .checked_add(SignedDuration::from_nanos(nanoseconds))
        .ok_or(Fault::NoTime)?;
    push_timestamp(out, since, false)
}

pub(crate) fn write_bytes(bytes: &[u8], kind: Kind, out: &mut String) -> Result<(), Fault> {
    match kind {
        Kind::Text => {
            let text = std::str::from_utf8(bytes).map_err(|_| Fault::NotUtf8)?;
            push_json_string(out, text);
        }
        Kind::Decimal { scale } => {
            let unscaled = big_endian(bytes).ok_or(Fault::Malformed)?;
            push_decimal(out, unscaled, scale);
        }
        Kind::Uuid => push_uuid(out, bytes.try_into().map_err(|_| Fault::Malformed)?),
        Kind::HalfFloat => {
            let bits = bytes.try_into().map_err(|_| Fault::Malformed)?;
            write_number(half_float(u16::from_le_bytes(bits)), out)?;
        }
        Kind::Null
        | Kind::Boolean
        | Kind::Integer
        | Kind::Unsigned
        | Kind::Float
        | Kind::Date
        | Kind::Time(_)
        | Kind::Timestamp { .. } => return Err(Fault::Malformed),
    }
    Ok(())
}

fn push(out: &mut String, value: impl std::fmt::Display) {
    // Writing to a string can't fail.
    let _ = write!(out, "{value}");
}

/// A text that needs no escapes.
fn push_text(out: &mut String, value: impl std::fmt::Display) {
    let _ = write!(out, "\"{value}\"");
}

/// A number or boolean. A float has as many digits as tell it from its neighbours, and is null when
/// it is no number.
pub(crate) fn write_number<T: serde::Serialize>(value: T, out: &mut String) -> Result<(), Fault> {
    let text = serde_json::to_string(&value).map_err(|_| Fault::Malformed)?;
    out.push_str(&text);
    Ok(())
}

pub(crate) fn push_decimal(out: &mut String, unscaled: i128, scale: u32) {
    let digits = unscaled.unsigned_abs().to_string();
    let scale = scale as usize;
    let sign = if unscaled < 0 { "-" } else { "" };
    // At least one digit before the point.
    let digits = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    let point = if scale > 0 { "." } else { "" };
    push_text(out, format_args!("{sign}{whole}{point}{fraction}"));
}

fn push_timestamp(out: &mut String, since: SignedDuration, utc: bool) -> Result<(), Fault> {
    let start: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
    let time = start.checked_add(since).map_err(|_| Fault::NoTime)?;
    if time.year() < 1 {
        return Err(Fault::NoTime);
    }
    let zone = if utc { "Z" } else { "" };
    push_text(out, format_args!("{time}{zone}"));
    Ok(())
}

fn day(days: i64) -> Option<Date> {
    let hours = days.checked_mul(24)?;
    let day = date(1970, 1, 1)
        .checked_add(SignedDuration::from_hours(hours))
        .ok()?;
    (day.year() >= 1).then_some(day)
}

fn time(since_midnight: SignedDuration) -> Option<Time> {
    Time::midnight().checked_add(since_midnight).ok()
}

fn push_uuid(out: &mut String, bytes: [u8; 16]) {
    let mut text = String::new();
    for (place, byte) in bytes.into_iter().enumerate() {
        if matches!(place, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    push_text(out, text);
}

/// A whole number in two's complement.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let first = *bytes.first()?;
    let fill = if first >= 0x80 { 0xff } else { 0 };
    let mut padded = [fill; 16];
    let start = padded.len().checked_sub(bytes.len())?;
    padded[start..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(padded))
}

/// IEEE 754's binary16.
pub(crate) fn half_float(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((bits >> 10) & 0x1f);
    let fraction = f32::from(bits & 0x3ff);
    match exponent {
        0 => sign * fraction * 2_f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1024.0 + fraction) * 2_f32.powi(exponent - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `write` writes, or its fault.
    fn written(write: impl FnOnce(&mut String) -> Result<(), Fault>) -> Result<String, Fault> {
        let mut out = String::new();
        write(&mut out).map(|()| out)
    }

    #[test]
    fn decimals_keep_every_digit() {
        for (unscaled, scale, text) in [
            (12_345, 2, "\"123.45\""),
            (-5, 3, "\"-0.005\""),
            (0, 0, "\"0\""),
            (7, 0, "\"7\""),
            (100, 2, "\"1.00\""),
        ] {
            let mut out = String::new();
            push_decimal(&mut out, unscaled, scale);
            assert_eq!(out, text);
        }
        let mut out = String::new();
        push_decimal(&mut out, i128::MIN, 38);
        assert_eq!(out, "\"-1.70141183460469231731687303715884105728\"");
        assert_eq!(big_endian(&[0xff, 0x85]), Some(-123));
        assert_eq!(big_endian(&[0; 17]), None);
        assert_eq!(big_endian(&[]), None);
    }

    #[test]
    fn times_are_rfc_3339_where_they_are_points_in_time() {
        let utc = Kind::Timestamp {
            unit: Unit::Milliseconds,
            utc: true,
        };
        let clock = Kind::Timestamp {
            unit: Unit::Nanoseconds,
            utc: false,
        };
        let check = |value: i64, kind, expected: Result<&str, Fault>| {
            let found = written(|out| write_int64(value, kind, out));
            assert_eq!(found.as_deref(), expected.as_ref().copied());
        };
        check(1_704_067_200_123, utc, Ok("\"2024-01-01T00:00:00.123Z\""));
        check(-1, utc, Ok("\"1969-12-31T23:59:59.999Z\""));
        check(
            1_704_067_200_000_000_001,
            clock,
            Ok("\"2024-01-01T00:00:00.000000001\""),
        );
        check(253_402_214_400_000, utc, Ok("\"9999-12-31T00:00:00Z\""));
        check(i64::MAX, utc, Err(Fault::NoTime));
        check(i64::MIN, utc, Err(Fault::NoTime));
        check(19_723, Kind::Date, Ok("\"2024-01-01\""));
        check(i64::from(i32::MAX), Kind::Date, Err(Fault::NoTime));
        check(
            45_296_000,
            Kind::Time(Unit::Milliseconds),
            Ok("\"12:34:56\""),
        );
        check(
            86_400_000,
            Kind::Time(Unit::Milliseconds),
            Err(Fault::NoTime),
        );
        check(-1, Kind::Unsigned, Ok("18446744073709551615"));
        check(-1, Kind::Integer, Ok("-1"));
    }

    #[test]
    fn old_timestamps_count_julian_days() {
        let mut value = Int96::new();
        value.set_data(1_000_000_000, 0, 2_440_589);
        let found = written(|out| write_int96(&value, out));
        assert_eq!(found.as_deref(), Ok("\"1970-01-02T00:00:01\""));
        value.set_data(u32::MAX, u32::MAX, u32::MAX);
        assert_eq!(written(|out| write_int96(&value, out)), Err(Fault::NoTime));
    }

    #[test]
    fn floats_are_short_and_what_is_no_number_is_null() {
        let short = written(|out| write_number(0.1_f32, out));
        assert_eq!(short.as_deref(), Ok("0.1"));
        let whole = written(|out| write_number(5.0_f64, out));
        assert_eq!(whole.as_deref(), Ok("5.0"));
        for odd in [f64::NAN, f64::INFINITY] {
            let found = written(|out| write_number(odd, out));
            assert_eq!(found.as_deref(), Ok("null"));
        }
        for (bits, value) in [
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 5.960_464_5e-8),
            (0x0000, 0.0),
        ] {
            assert!((half_float(bits) - value).abs() <= f32::EPSILON * value.abs());
        }
        assert!(half_float(0x7e00).is_nan());
        assert!(half_float(0xfc00).is_infinite());
    }
}
