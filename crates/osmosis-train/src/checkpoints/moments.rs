//! The optimizer's moments as a safetensors file.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;

use camino::Utf8Path;
use osmosis_policy::NamedTensor;
use safetensors::{Dtype, SafeTensorError, SafeTensors, View};

use crate::{TrainError, durable_file};

struct Moment<'t>(&'t NamedTensor);

impl View for Moment<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }
    fn shape(&self) -> &[usize] {
        &self.0.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = self.0.values.iter().flat_map(|value| value.to_le_bytes());
        Cow::Owned(bytes.collect())
    }
    fn data_len(&self) -> usize {
        self.0.values.len() * size_of::<f32>()
    }
}

/// Writes the file; on disk when this returns.
pub(super) fn write(
    path: &Utf8Path,
    moments: &BTreeMap<String, NamedTensor>,
) -> Result<(), TrainError> {
    let views = moments.iter().map(|(name, tensor)| (name, Moment(tensor)));
    safetensors::serialize_to_file(views, None, path.as_std_path()).map_err(|error| {
        let error = match error {
            SafeTensorError::IoError(error) => error,
            other => io::Error::other(other),
        };
        TrainError::file(path, &error)
    })?;
    durable_file::sync(path)
}

/// Reads the file; the message says what is wrong with it.
pub(super) fn read(path: &Utf8Path) -> Result<BTreeMap<String, NamedTensor>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
    let mut moments = BTreeMap::new();
    for (name, view) in tensors.tensors() {
        if view.dtype() != Dtype::F32 {
            return Err(format!("tensor `{name}` is not f32"));
        }
        let (values, _) = view.data().as_chunks::<4>();
        let tensor = NamedTensor {
            shape: view.shape().to_vec(),
            values: values
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
        };
        moments.insert(name, tensor);
    }
    Ok(moments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_come_back_bit_for_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(folder.path())
            .unwrap()
            .join("m.safetensors");
        let moments = BTreeMap::from([
            (
                "b.second".to_owned(),
                NamedTensor {
                    shape: vec![2, 2],
                    values: vec![0.1, -0.0, f32::MIN_POSITIVE / 2.0, 3.0e38].into(),
                },
            ),
            (
                "a.first".to_owned(),
                NamedTensor {
                    shape: vec![1],
                    values: vec![1.0 / 3.0].into(),
                },
            ),
        ]);
        write(&path, &moments).unwrap();
        let back = read(&path).unwrap();
        let bits =
            |moments: &BTreeMap<String, NamedTensor>| -> Vec<(String, Vec<usize>, Vec<u32>)> {
                moments
                    .iter()
                    .map(|(name, t)| {
                        let bits = t.values.iter().map(|v| v.to_bits()).collect();
                        (name.clone(), t.shape.clone(), bits)
                    })
                    .collect()
            };
        assert_eq!(bits(&back), bits(&moments));
    }
}
