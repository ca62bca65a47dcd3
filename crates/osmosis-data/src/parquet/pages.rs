use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// The pages of a column, without empty ones: the library takes such a page for the column's end,
/// and some writers leave them behind.
pub(super) struct Pages {
    inner: Box<dyn PageReader>,
    has_dictionary: bool,
}

impl Pages {
    pub(super) fn new(inner: Box<dyn PageReader>) -> Self {
        Self {
            inner,
            has_dictionary: false,
        }
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        while let Some(page) = self.inner.get_next_page()? {
            if page.is_dictionary_page() {
                // The library makes room for all that are declared, before it reads one.
                if page.num_values() as usize > page.buffer().len() {
                    let message = "a dictionary declares more values than it has bytes";
                    return Err(ParquetError::General(message.to_owned()));
                }
                self.has_dictionary = true;
                return Ok(Some(page));
            }
            if page.num_values() == 0 {
                continue;
            }
            let needs_dictionary = matches!(
                page.encoding(),
                Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY
            );
            if needs_dictionary && !self.has_dictionary {
                return Err(ParquetError::General("a dictionary is missing".to_owned()));
            }
            return Ok(Some(page));
        }
        Ok(None)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        loop {
            match self.inner.peek_next_page()? {
                Some(page) if !page.is_dict && page.num_levels == Some(0) => {
                    self.inner.skip_next_page()?;
                }
                other => return Ok(other),
            }
        }
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}
