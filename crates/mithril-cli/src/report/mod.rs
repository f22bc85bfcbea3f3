//! Reports as one page with pictures, which needs nothing but itself.
//!
//! A report is a body (sections, and a script that fills them) in the frame that all reports share: style, the data as
//! `report`, and the functions that draw rows and bars.

use crate::failure::Failure;
use crate::output::{Output, Target};
use mithril::Attributes;
use serde_json::Value;
use std::io::Write;
use std::path::Path;

/// What all reports have in common.
const FRAME: &str = include_str!("page.html");

/// Where the data goes.
const DATA_PLACE: &str = "/*DATA*/null";

/// Where the body goes.
const BODY_PLACE: &str = "<!--BODY-->";

/// Writes a page of a body and its data; returns its length.
pub(crate) fn write(body: &str, data: &Value, path: &Path, replace: bool) -> Result<u64, Failure> {
    let mut output = Output::create(&Target::File(path.to_owned()), replace, Attributes::default())?;
    // The body first: what is in the data must not be taken for a place.
    let page = FRAME.replacen(BODY_PLACE, body, 1).replacen(DATA_PLACE, &script_value(data), 1);
    output.write_all(page.as_bytes()).map_err(|error| Failure::write(path.display(), &error))?;
    output.commit()
}

/// A value as it may stand in a script: nothing in it can end the script.
fn script_value(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn data_cannot_end_the_script_it_stands_in() {
        let text = script_value(&json!({"name": "</script><script>alert(1)//\u{2028}"}));
        assert!(!text.contains('<') && !text.contains('\u{2028}'));
        assert_eq!(
            serde_json::from_str::<Value>(&text).unwrap()["name"],
            "</script><script>alert(1)//\u{2028}"
        );
    }

    #[test]
    fn pages_have_one_place_for_data_and_ask_for_nothing_else() {
        for body in [crate::inspect::page::BODY, crate::store::page::BODY] {
            let page = FRAME.replacen(BODY_PLACE, body, 1);
            assert_eq!(page.matches(DATA_PLACE).count(), 1);
            assert!(!page.contains(BODY_PLACE));
            for outside in ["http://", "https://", "src=", "@import", "url("] {
                assert!(!page.contains(outside), "{outside}");
            }
        }
    }
}
