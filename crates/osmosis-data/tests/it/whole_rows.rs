//! Rows that are taken as they are.

use osmosis_data::{Dataset, ReportMode, RowMode, RowProblem, Taking};

use crate::file;

#[test]
fn rows_taken_whole_need_no_columns_and_stay_as_they_are() {
    for (name, text, body) in [
        (
            "d.jsonl",
            "{\"ask\": 1.50, \"label\": [], \"metadata\": 7}\n",
            "{\"ask\": 1.50, \"label\": [], \"metadata\": 7}",
        ),
        ("d.csv", "ask,n\nwhy,2\n", "{\"ask\":\"why\",\"n\":\"2\"}"),
    ] {
        let (_folder, path) = file(name, text.as_bytes());
        let dataset = Dataset::open(&path).unwrap();
        let in_columns = dataset.validate();
        assert!(
            in_columns.is_err() || in_columns.unwrap().error_count == 1,
            "{name}"
        );
        let dataset = dataset.with(Taking::WholeRows);
        let report = dataset.validate().unwrap();
        assert_eq!(report.check().ok(), Some(()), "{name}");
        assert_eq!(report.mode, Some(ReportMode::Whole), "{name}");
        let row = dataset.rows().next().unwrap().unwrap();
        assert_eq!(row.body.as_str(), body);
        assert_eq!((row.mode, row.prompt.len()), (RowMode::Whole, 0));
    }
}

#[test]
fn what_is_no_row_for_anybody_is_none_here_either() {
    let (_folder, path) = file("d.jsonl", b"[1]\n{\"a\": 1}\n{\"a\":\n");
    let dataset = Dataset::open(&path).unwrap().with(Taking::WholeRows);
    let report = dataset.validate().unwrap();
    assert_eq!((report.rows, report.error_count), (3, 2));
    assert!(matches!(
        report.errors[0].problem,
        RowProblem::NotAnObject { .. }
    ));
}
