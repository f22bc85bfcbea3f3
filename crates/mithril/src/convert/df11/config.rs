//! `dfloat11_config`: what a reader must know besides the tensors, kept in `config.json`.

use crate::Error;
use mithril_codec::df11::Geometry;
use mithril_format::df11::damaged;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the package whose files these are.
const VERSION: &str = "0.5.0";

/// Which modules are coded: regular expressions for their names, in order, each with the submodules whose weights are
/// coded together. A module that has a weight of its own is coded alone, whatever the list says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PatternDict(pub Vec<(String, Vec<String>)>);

/// The configuration of a DF11 directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Threads and their bytes.
    pub geometry: Geometry,
    /// Which modules are coded.
    pub patterns: PatternDict,
}

/// The file `config.json` as far as it concerns us.
#[derive(Deserialize, Serialize)]
struct File {
    dfloat11_config: Content,
}

#[derive(Deserialize, Serialize)]
struct Content {
    version: String,
    threads_per_block: Vec<u32>,
    bytes_per_thread: u32,
    pattern_dict: PatternDict,
}

impl Config {
    /// Reads the configuration from the text of `config.json`.
    ///
    /// # Errors
    /// When it is no JSON, has no `dfloat11_config`, or one that no reader could use.
    pub fn read(text: &[u8]) -> Result<Self, Error> {
        let file: File =
            serde_json::from_slice(text).map_err(|error| damaged("config.json", error.to_string()))?;
        let Content { threads_per_block, bytes_per_thread, pattern_dict, .. } = file.dfloat11_config;
        let geometry = match threads_per_block.as_slice() {
            &[threads] => Geometry::new(threads, bytes_per_thread),
            _ => None,
        };
        let geometry = geometry.ok_or_else(|| {
            let reason = format!("{threads_per_block:?} threads of {bytes_per_thread} bytes");
            damaged("config.json", format!("no kernel has {reason}"))
        })?;
        Ok(Self { geometry, patterns: pattern_dict })
    }

    /// Whether the text of a `config.json` has a `dfloat11_config`.
    #[must_use]
    pub fn is_in(text: &[u8]) -> bool {
        serde_json::from_slice::<serde_json::Value>(text)
            .is_ok_and(|value| value.get("dfloat11_config").is_some_and(serde_json::Value::is_object))
    }

    /// The text of `config.json`: that of the model, if there is one, with the configuration as its last entry.
    ///
    /// # Errors
    /// When the model's text is no JSON object, or has a `dfloat11_config` already.
    pub fn write(&self, model: Option<&str>) -> Result<String, Error> {
        let content = Content {
            version: VERSION.to_owned(),
            threads_per_block: vec![self.geometry.threads_per_block()],
            bytes_per_thread: self.geometry.bytes_per_thread(),
            pattern_dict: self.patterns.clone(),
        };
        let alone = serde_json::to_string_pretty(&File { dfloat11_config: content })
            .map_err(|error| Error::invalid(format!("cannot write `config.json`: {error}")))?;
        let alone = escape(&alone);
        let Some(model) = model else { return Ok(alone) };
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(model)
            .map_err(|error| Error::invalid(format!("`config.json` of the model: {error}")))?;
        if object.contains_key("dfloat11_config") {
            return Err(Error::invalid(
                "`config.json` has a `dfloat11_config`: the model is DFloat11 already",
            ));
        }
        // The text stays as it is, up to the brace that closes it.
        let (before, behind) = model.rsplit_once('}').unwrap_or((model, ""));
        let entry = alone.strip_prefix("{\n").and_then(|text| text.strip_suffix("\n}")).unwrap_or(&alone);
        let comma = if object.is_empty() { "" } else { "," };
        Ok(format!("{}{comma}\n{entry}\n}}{behind}", before.trim_end()))
    }
}

/// The text of a `config.json` without its `dfloat11_config`; nothing if nothing else is in it.
pub(super) fn without(text: &str) -> Option<String> {
    let mut object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
    object.remove("dfloat11_config");
    // What our encoder appended comes off again, so that the rest of the text is the model's own.
    let key = "\n  \"dfloat11_config\": {";
    let own = text.rfind(key).map(|at| (text[..at].trim_end_matches(','), text.rfind('}').unwrap_or(at)));
    let restored = own.map(|(before, close)| format!("{before}\n{}", &text[close..]));
    let is_same = |restored: &String| {
        serde_json::from_str::<serde_json::Map<_, _>>(restored).is_ok_and(|restored| restored == object)
    };
    match restored.filter(is_same) {
        _ if object.is_empty() => None,
        Some(restored) => Some(restored),
        None => serde_json::to_string_pretty(&object).ok(),
    }
}

/// Text outside of ASCII as the package writes it: escaped, in UTF-16.
fn escape(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            let mut units = [0; 2];
            for unit in character.encode_utf16(&mut units) {
                text += &format!("\\u{unit:04x}");
            }
        }
    }
    text
}

impl Serialize for PatternDict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(pattern, attributes)| (pattern, attributes)))
    }
}

impl<'de> Deserialize<'de> for PatternDict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = PatternDict;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object of lists of names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PatternDict, A::Error> {
                let mut patterns = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    patterns.push(entry);
                }
                Ok(PatternDict(patterns))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(patterns: &[(&str, &[&str])]) -> Config {
        let entry = |(pattern, attributes): &(&str, &[&str])| {
            ((*pattern).to_owned(), attributes.iter().map(|&attribute| attribute.to_owned()).collect())
        };
        Config { geometry: Geometry::default(), patterns: PatternDict(patterns.iter().map(entry).collect()) }
    }

    #[test]
    fn text_is_that_of_the_package() {
        let text = config(&[("lin", &[]), (r"b\.\d+", &["q", "k.v"])]).write(None).unwrap();
        let expected = r#"{
  "dfloat11_config": {
    "version": "0.5.0",
    "threads_per_block": [
      512
    ],
    "bytes_per_thread": 8,
    "pattern_dict": {
      "lin": [],
      "b\\.\\d+": [
        "q",
        "k.v"
      ]
    }
  }
}"#;
        assert_eq!(text, expected);
        assert_eq!(
            config(&[("é😀", &[])]).write(None).unwrap().matches(r#""\u00e9\ud83d\ude00": []"#).count(),
            1
        );
    }

    #[test]
    fn patterns_keep_their_order() {
        let config = config(&[("z", &[]), ("a", &["x"]), ("m", &[])]);
        assert_eq!(Config::read(config.write(None).unwrap().as_bytes()).unwrap(), config);
    }

    #[test]
    fn a_model_keeps_its_own_text() {
        let config = config(&[("lin", &[])]);
        let model = "{\n  \"z\": 1.50,\n  \"a\": [1, 2]\n}\n";
        let text = config.write(Some(model)).unwrap();
        assert!(
            text.starts_with(
                "{\n  \"z\": 1.50,\n  \"a\": [1, 2],\n  \"dfloat11_config\": {\n    \"version\""
            )
        );
        assert!(text.ends_with("  }\n}\n"));
        assert_eq!(Config::read(text.as_bytes()).unwrap(), config);
        assert_eq!(Config::read(config.write(Some("{}")).unwrap().as_bytes()).unwrap(), config);
        assert_eq!(without(&text).as_deref(), Some(model));
        assert_eq!(without(&config.write(None).unwrap()), None);
        let moved = format!("{{{}, \"last\": 1}}", config.write(None).unwrap().trim_matches(['{', '}']));
        assert_eq!(without(&moved).unwrap(), "{\n  \"last\": 1\n}");
        assert!(config.write(Some(&text)).is_err());
        assert!(config.write(Some("[]")).is_err());
    }

    #[test]
    fn configurations_that_no_kernel_has_are_refused() {
        let text = config(&[]).write(None).unwrap();
        for (right, wrong) in [("512", "500"), ("512", "512, 2"), ("8,", "0,"), ("[]", "5"), ("{}", "[]")] {
            let damaged = text.replacen(right, wrong, 1);
            if damaged != text {
                assert!(Config::read(damaged.as_bytes()).is_err(), "{damaged}");
            }
        }
        assert!(Config::read(b"{}").is_err() && !Config::is_in(b"{}") && Config::is_in(text.as_bytes()));
    }
}
