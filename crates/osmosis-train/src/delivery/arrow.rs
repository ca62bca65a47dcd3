//! A batch as an Arrow IPC stream: one record batch, a row of it for each training row.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{Float32Type, Float64Type, Int64Type, UInt8Type, UInt32Type};
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, ListArray, PrimitiveArray, RecordBatch, StringArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};

use super::{DeliveredBatch, DeliveredRow};
use crate::TrainError;

/// The batch as the bytes of an Arrow IPC stream. Its number and version are in the schema's metadata,
/// `osmosis.batch` and `osmosis.version`.
pub fn to_arrow(batch: &DeliveredBatch) -> Result<Vec<u8>, TrainError> {
    write(batch)
        .map_err(|error| TrainError::Internal(format!("a batch has no Arrow form: {error}")))
}

fn write(batch: &DeliveredBatch) -> Result<Vec<u8>, ArrowError> {
    let rows = &batch.rows;
    let columns: [(&str, ArrayRef); 12] = [
        (
            "group",
            numbers::<Int64Type>(rows, |row| signed(row.group.0)),
        ),
        (
            "row_index",
            numbers::<Int64Type>(rows, |row| signed(row.row_index)),
        ),
        ("rollout_id", texts(rows, |row| row.rollout_id.as_str())),
        ("sample_id", texts(rows, |row| row.sample_id.as_str())),
        ("row", texts(rows, |row| &row.row)),
        ("ids", lists::<UInt32Type>(rows, |row| &row.ids)?),
        ("loss_mask", lists::<UInt8Type>(rows, |row| &row.loss_mask)?),
        ("logprobs", lists::<Float32Type>(rows, |row| &row.logprobs)?),
        ("versions", lists::<Int64Type>(rows, |row| &row.versions)?),
        (
            "temperatures",
            lists::<Float32Type>(rows, |row| &row.temperatures)?,
        ),
        ("reward", numbers::<Float64Type>(rows, |row| row.reward)),
        (
            "advantage",
            numbers::<Float64Type>(rows, |row| row.advantage),
        ),
    ];
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), false))
        .collect();
    let metadata = HashMap::from([
        ("osmosis.batch".to_owned(), batch.number.to_string()),
        ("osmosis.version".to_owned(), batch.version.0.to_string()),
    ]);
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    let record = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&record)?;
    writer.into_inner()
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn numbers<T: ArrowPrimitiveType>(
    rows: &[DeliveredRow],
    of: impl Fn(&DeliveredRow) -> T::Native,
) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter_values(rows.iter().map(of)))
}

fn texts(rows: &[DeliveredRow], of: impl Fn(&DeliveredRow) -> &str) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
}

fn lists<T: ArrowPrimitiveType>(
    rows: &[DeliveredRow],
    of: impl Fn(&DeliveredRow) -> &Vec<T::Native>,
) -> Result<ArrayRef, ArrowError> {
    let tokens: usize = rows.iter().map(|row| of(row).len()).sum();
    if i32::try_from(tokens).is_err() {
        return Err(ArrowError::InvalidArgumentError(format!(
            "{tokens} tokens are more than one batch can hold"
        )));
    }
    let offsets = OffsetBuffer::from_lengths(rows.iter().map(|row| of(row).len()));
    let values = rows.iter().flat_map(|row| of(row).iter().copied());
    let values = PrimitiveArray::<T>::from_iter_values(values);
    let item = Arc::new(Field::new("item", DataType::clone(&T::DATA_TYPE), false));
    Ok(Arc::new(ListArray::try_new(
        item,
        offsets,
        Arc::new(values),
        None,
    )?))
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_ipc::reader::StreamReader;

    use super::*;
    use crate::delivery::tests::batch;

    #[test]
    fn an_arrow_stream_holds_every_column_and_says_which_batch_it_is() {
        let mut given = batch();
        let mut second = given.rows[0].clone();
        second.ids.push(8);
        second.loss_mask.push(0);
        second.logprobs.push(0.0);
        second.versions.push(-1);
        second.temperatures.push(1.0);
        given.rows.push(second);

        let bytes = to_arrow(&given).unwrap();
        let mut reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        let metadata = reader.schema().metadata().clone();
        assert_eq!(metadata["osmosis.batch"], "2");
        assert_eq!(metadata["osmosis.version"], "4");
        let read = reader.next().unwrap().unwrap();
        assert!(reader.next().is_none());

        let list = |name: &str, at: usize| {
            read.column_by_name(name)
                .unwrap()
                .as_list::<i32>()
                .value(at)
        };
        assert_eq!(
            list("ids", 0).as_primitive::<UInt32Type>().values(),
            &[5, 70_000, 7]
        );
        assert_eq!(list("ids", 1).len(), 4);
        assert_eq!(
            list("loss_mask", 0).as_primitive::<UInt8Type>().values(),
            &[0, 1, 1]
        );
        assert_eq!(
            list("logprobs", 0).as_primitive::<Float32Type>().values(),
            &[0.0, -0.125, -1.5]
        );
        assert_eq!(
            list("versions", 1).as_primitive::<Int64Type>().values(),
            &[-1, 3, 4, -1]
        );
        assert_eq!(
            list("temperatures", 0)
                .as_primitive::<Float32Type>()
                .values(),
            &[1.0, 0.5, 0.5]
        );
        let text = |name: &str| {
            read.column_by_name(name)
                .unwrap()
                .as_string::<i32>()
                .value(1)
                .to_owned()
        };
        assert_eq!(
            ["rollout_id", "sample_id", "row"].map(text),
            ["r9-1", "main", "main/0"].map(str::to_owned)
        );
        let number = |name: &str| {
            read.column_by_name(name)
                .unwrap()
                .as_primitive::<Int64Type>()
                .value(1)
        };
        assert_eq!([number("group"), number("row_index")], [12, 9]);
        let real = |name: &str| {
            let column = read.column_by_name(name).unwrap();
            column.as_primitive::<Float64Type>().value(0).to_bits()
        };
        assert_eq!(real("reward"), 1.0_f64.to_bits());
        assert_eq!(real("advantage"), 0.5_f64.to_bits());
    }

    #[test]
    fn a_batch_without_rows_has_a_stream_too() {
        let empty = DeliveredBatch {
            rows: vec![],
            ..batch()
        };
        let bytes = to_arrow(&empty).unwrap();
        let mut reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().num_rows(), 0);
    }
}
