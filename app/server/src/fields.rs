//! Reads request bodies into structs with serde. The fields of a struct are the allowed fields;
//! every other field is refused. An error names the path of the field, the expected value and the
//! actual one. `null` and an empty list count as absent.
//!
//! Three forms have a special meaning. A tuple of structs reads all its structs from one object. An
//! enum with the serde name `TAG: EXPECTED` is chosen by the field `TAG` of the object. Errors name
//! `EXPECTED` as the expected value. The text of serde's custom errors is the expected value.

use std::{cell::RefCell, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeOwned, DeserializeSeed, EnumAccess, Expected, IgnoredAny, MapAccess, SeqAccess, Unexpected,
        VariantAccess, Visitor,
        value::{BorrowedStrDeserializer, SeqAccessDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Value, map};

use super::error::ApiError;
use thermocline_host::units::{Limit, Seed};

/// Characters of an invalid value that an error quotes.
const QUOTED: usize = 60;

/// Every whole number up to this one, 2^53, is exact as an `f64`.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// The expected value of a list field. The name of the items follows.
const LIST: &str = "a list";

/// A field that a strict server refuses.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Lenient<T>(pub T);

/// An optional field that a strict server refuses.
pub type LenientField<T> = Option<Lenient<T>>;

/// A hint of other servers' clients, without effect. A strict server refuses it.
pub type Hint = LenientField<IgnoredAny>;

/// A field without effect.
pub type Ignored = Option<IgnoredAny>;

/// A limit: a whole number. A negative number means no limit, as in other servers. A strict server
/// refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct FieldLimit(#[serde(deserialize_with = "read_limit")] pub Limit);

/// A seed: a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct FieldSeed(pub Seed);

/// A text or a list.
#[derive(Debug, Clone, PartialEq)]
pub enum TextOr<T> {
    /// The text.
    Text(String),
    /// The list.
    List(Vec<T>),
}

/// An item of a list that may replace a text.
pub trait ListItem {
    /// Name of the items in errors.
    const NAME: &'static str;
}

/// Reads a request's body.
pub fn parse_fields<T: DeserializeOwned>(body: &[u8], strict: bool) -> Result<T, ApiError> {
    let value: Value = serde_json::from_slice(body)
        .map_err(|error| ApiError::bad_request(format!("the body is not JSON: {error}")))?;
    match value.is_object() {
        true => read_fields(&value, "", strict),
        false => Err(ApiError::bad_request(format!("the body: expected a JSON object, got {}", quoted(&value)))),
    }
}

/// Reads `value`. Errors name it `path`.
pub fn read_fields<T: DeserializeOwned>(value: &Value, path: &str, strict: bool) -> Result<T, ApiError> {
    T::deserialize(FieldReader::new(value, strict)).map_err(|error| within(error, path, value))
}

/// Converts each item of the list `path`. An error names the item by its number.
pub fn each<T, U>(
    list: impl IntoIterator<Item = T>,
    path: &str,
    mut convert: impl FnMut(usize, T) -> Result<U, ApiError>,
) -> Result<Vec<U>, ApiError> {
    let item = |(at, item)| convert(at, item).map_err(|error| error.under(&format!("{path}[{at}]")));
    list.into_iter().enumerate().map(item).collect()
}

/// Reads a whole number of at least 0. Clients without an integer type write `1.0`.
pub fn whole_number(value: &Value) -> Option<u64> {
    let exact = |number: f64| (number.fract() == 0.0 && (0.0..=EXACT).contains(&number)).then_some(number as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(exact))
}

/// Creates the error for an invalid value of `field`.
pub fn invalid(field: &str, expected: &str, got: &Value) -> ApiError {
    ApiError::invalid_field(field, format!("{field}: expected {expected}, got {}", quoted(got)))
}

/// Creates the error for a missing value of `field`.
pub fn missing(field: &str, expected: &str) -> ApiError {
    ApiError::invalid_field(field, format!("{field}: expected {expected}, got none"))
}

/// Refuses all values of `field` except `accepted`, which have no effect.
pub fn accept_only(value: Option<&Value>, field: &str, accepted: &[Value]) -> Result<(), ApiError> {
    match value {
        Some(value) if !accepted.contains(value) => {
            let accepted: Vec<String> = accepted.iter().map(Value::to_string).collect();
            Err(invalid(field, &accepted.join(" or "), value))
        }
        _ => Ok(()),
    }
}

/// Joins the path of a field to the path `parent`.
pub fn joined(parent: &str, path: &str) -> String {
    let point = if parent.is_empty() || path.is_empty() || path.starts_with('[') { "" } else { "." };
    format!("{parent}{point}{path}")
}

fn quoted(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(QUOTED) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn is_absent(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// True for a negative whole number.
fn is_negative(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number < 0.0 && number.fract() == 0.0)
}

fn read_limit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let count = whole_number(&value).and_then(|number| usize::try_from(number).ok());
    let limit = if is_negative(&value) { Some(Limit::None) } else { count.map(Limit::Of) };
    limit.ok_or_else(|| de::Error::custom("a whole number"))
}

impl TryFrom<Value> for FieldSeed {
    type Error = &'static str;

    fn try_from(value: Value) -> Result<Self, &'static str> {
        let seed = if is_negative(&value) { Some(Seed::Any) } else { whole_number(&value).map(Seed::Fixed) };
        seed.map(FieldSeed).ok_or("a whole number")
    }
}

impl<T> TextOr<T> {
    /// Returns the text, or the joined texts of the items. `read` returns the text of an item.
    pub fn text(self, mut read: impl FnMut(T) -> Result<String, ApiError>) -> Result<String, ApiError> {
        match self {
            TextOr::Text(text) => Ok(text),
            TextOr::List(list) => Ok(each(list, "", |_, item| read(item))?.concat()),
        }
    }
}

impl<'de, T: Deserialize<'de> + ListItem> Deserialize<'de> for TextOr<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextOrVisitor(PhantomData))
    }
}

struct TextOrVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + ListItem> Visitor<'de> for TextOrVisitor<T> {
    type Value = TextOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a string or a list of {}", T::NAME)
    }

    fn visit_str<E>(self, text: &str) -> Result<TextOr<T>, E> {
        Ok(TextOr::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<TextOr<T>, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(TextOr::List)
    }
}

impl de::Error for ApiError {
    /// Creates the error of an unexpected value. [`within`] adds the value.
    fn custom<T: fmt::Display>(expected: T) -> Self {
        ApiError::invalid_field("", format!(": expected {expected}"))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(expected)
    }

    fn unknown_variant(_: &str, variants: &'static [&'static str]) -> Self {
        Self::custom(variants.join(", "))
    }

    fn missing_field(field: &'static str) -> Self {
        invalid(field, "a string", &Value::Null)
    }
}

/// Completes an error in `value`, the field or item `name`.
fn within(mut error: ApiError, name: &str, value: &Value) -> ApiError {
    if error.message.starts_with(": expected ") && !error.message.contains(", got ") {
        if error.message.ends_with(LIST) {
            error.message += &format!(" of {name}");
        }
        error.message += &format!(", got {}", quoted(value));
    }
    error.under(name)
}

/// Names of the fields of a tuple's structs.
type KnownFields = RefCell<Vec<&'static str>>;

/// A value to read.
#[derive(Debug, Clone, Copy)]
struct FieldReader<'de, 'known> {
    value: &'de Value,
    /// Refuse [`Lenient`] fields and negative limits.
    strict: bool,
    /// The field that chooses the enum's variant, and its expected values.
    tagged: Option<(&'static str, &'static str)>,
    /// Collects the field names of a struct in a tuple.
    known: Option<&'known KnownFields>,
}

impl<'de> FieldReader<'de, '_> {
    fn new(value: &'de Value, strict: bool) -> Self {
        FieldReader { value, strict, tagged: None, known: None }
    }

    /// Refuses fields that are not in `known`, except absent fields and the variant's tag.
    fn refuse_unknown(&self, known: &[&str]) -> Result<(), ApiError> {
        let tag = self.tagged.map(|(tag, _)| tag);
        let unknown = |name: &str, value: &Value| !known.contains(&name) && tag != Some(name) && !is_absent(value);
        let mut entries = self.value.as_object().into_iter().flatten();
        match entries.find(|(name, value)| unknown(name, value)) {
            Some((name, _)) => Err(ApiError::unsupported(name)),
            None => Ok(()),
        }
    }
}

/// Passes `found` to `visit`, or returns an error that names the `expected` value.
fn visited<T, U>(
    found: Option<T>,
    expected: &str,
    visit: impl FnOnce(T) -> Result<U, ApiError>,
) -> Result<U, ApiError> {
    found.map_or_else(|| Err(de::Error::custom(expected)), visit)
}

impl<'de> Deserializer<'de> for FieldReader<'de, '_> {
    type Error = ApiError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(it) => visitor.visit_bool(*it),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (None, Some(number)) => visitor.visit_i64(number),
                (None, None) => visitor.visit_f64(number.as_f64().unwrap_or_default()),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(list) => visitor.visit_seq(ListReader { items: list.iter().enumerate(), strict: self.strict }),
            Value::Object(map) => {
                visitor.visit_map(MapReader { entries: map.iter(), entry: None, strict: self.strict })
            }
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        visited(self.value.as_bool(), "true or false", |it| visitor.visit_bool(it))
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        visited(self.value.as_f64(), "a number", |number| visitor.visit_f64(number))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        self.deserialize_f32(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        visited(whole_number(self.value), "a whole number of at least 0", |number| visitor.visit_u64(number))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        visited(self.value.as_str(), "a string", |text| visitor.visit_borrowed_str(text))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        if is_absent(self.value) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, ApiError> {
        match name {
            "Lenient" if self.strict => Err(ApiError::unsupported("")),
            "FieldLimit" if self.strict && whole_number(self.value).is_none() => self.deserialize_u64(visitor),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        visited(self.value.as_array(), LIST, |_| self.deserialize_any(visitor))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ApiError> {
        visited(self.value.as_object(), "an object", |_| self.deserialize_any(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ApiError> {
        match self.known {
            Some(known) => known.borrow_mut().extend(fields),
            None => self.refuse_unknown(fields)?,
        }
        self.deserialize_map(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ApiError> {
        let known = KnownFields::default();
        let structs = FieldReader { known: Some(&known), ..FieldReader::new(self.value, self.strict) };
        let read = visitor.visit_seq(StructsReader(structs))?;
        self.refuse_unknown(&known.borrow())?;
        Ok(read)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ApiError> {
        if let Some(tag) = name.split_once(": ") {
            let tagged = FieldReader { tagged: Some(tag), ..self };
            return visited(self.value.as_object(), "an object", |_| visitor.visit_enum(tagged));
        }
        match self.value.as_str() {
            Some(text) => visitor.visit_enum(BorrowedStrDeserializer::<ApiError>::new(text)),
            None => Err(de::Error::unknown_variant("", variants)),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u8 u16 u32 u128 char str bytes byte_buf unit unit_struct tuple_struct identifier
        ignored_any
    }
}

impl<'de> EnumAccess<'de> for FieldReader<'de, '_> {
    type Error = ApiError;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), ApiError> {
        let (tag, expected) = self.tagged.unwrap_or_default();
        let value = self.value.get(tag).unwrap_or(&Value::Null);
        let chosen =
            value.as_str().and_then(|kind| seed.deserialize(BorrowedStrDeserializer::<ApiError>::new(kind)).ok());
        let variant = visited(chosen, expected, Ok).map_err(|error| within(error, tag, value))?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for FieldReader<'de, '_> {
    type Error = ApiError;

    fn unit_variant(self) -> Result<(), ApiError> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, ApiError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, ApiError> {
        self.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ApiError> {
        self.deserialize_struct("", fields, visitor)
    }
}

/// Reads several structs from one object.
struct StructsReader<'de, 'known>(FieldReader<'de, 'known>);

impl<'de> SeqAccess<'de> for StructsReader<'de, '_> {
    type Error = ApiError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ApiError> {
        seed.deserialize(self.0).map(Some)
    }
}

struct ListReader<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Value>>,
    strict: bool,
}

impl<'de> SeqAccess<'de> for ListReader<'de> {
    type Error = ApiError;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ApiError> {
        let Some((at, value)) = self.items.next() else { return Ok(None) };
        let read = seed.deserialize(FieldReader::new(value, self.strict));
        read.map(Some).map_err(|error| within(error, &format!("[{at}]"), value))
    }
}

struct MapReader<'de> {
    entries: map::Iter<'de>,
    entry: Option<(&'de String, &'de Value)>,
    strict: bool,
}

impl<'de> MapAccess<'de> for MapReader<'de> {
    type Error = ApiError;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, ApiError> {
        self.entry = self.entries.next();
        self.entry.map(|(name, _)| seed.deserialize(BorrowedStrDeserializer::new(name))).transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, ApiError> {
        let Some((name, value)) = self.entry.take() else { return Err(de::Error::custom("a field")) };
        seed.deserialize(FieldReader::new(value, self.strict)).map_err(|error| within(error, name, value))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Scalars {
        number: Option<f32>,
        count: Option<usize>,
        limit: Option<FieldLimit>,
        seed: Option<FieldSeed>,
        on: Option<bool>,
        text: Option<String>,
        hint: Hint,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "snake_case", rename = "kind: one or two")]
    enum OneOrTwo {
        One {
            a: Option<String>,
        },
        #[serde(alias = "zwei")]
        Two,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct ListedFields {
        list: Option<Vec<OneOrTwo>>,
    }

    fn read<T: DeserializeOwned>(value: &Value, strict: bool) -> Result<T, ApiError> {
        parse_fields(value.to_string().as_bytes(), strict)
    }

    #[test]
    fn fields_are_typed_and_null_empty_or_missing_ones_are_none() {
        let body =
            json!({ "number": 0.5, "count": 2.0, "limit": -1, "seed": -3.0, "on": true, "text": "x", "hint": {} });
        let wanted = Scalars {
            number: Some(0.5),
            count: Some(2),
            limit: Some(FieldLimit(Limit::None)),
            seed: Some(FieldSeed(Seed::Any)),
            on: Some(true),
            text: Some("x".to_owned()),
            hint: Some(Lenient(IgnoredAny)),
        };
        assert_eq!(read::<Scalars>(&body, false).unwrap(), wanted);
        let seed = read::<Scalars>(&json!({ "seed": u64::MAX }), true).unwrap().seed;
        assert_eq!(seed, Some(FieldSeed(Seed::Fixed(u64::MAX))));
        let absent = json!({ "number": null, "count": [], "hint": null, "unknown": [], "other": null });
        let nothing = Scalars { number: None, count: None, limit: None, seed: None, on: None, text: None, hint: None };
        assert_eq!(read::<Scalars>(&absent, true).unwrap(), nothing);
        let (one, two): (ListedFields, Scalars) =
            read(&json!({ "list": [{ "kind": "zwei" }], "count": 7 }), true).unwrap();
        assert_eq!((one.list, two.count), (Some(vec![OneOrTwo::Two]), Some(7)));
    }

    #[test]
    fn accept_only_refuses_other_values() {
        accept_only(Some(&json!(1)), "n", &[json!(1)]).unwrap();
        accept_only(None, "n", &[json!(1)]).unwrap();
        let error = accept_only(Some(&json!("flex")), "tier", &[json!("auto"), json!("default")]).unwrap_err();
        assert_eq!(error.message, "tier: expected \"auto\" or \"default\", got \"flex\"");
    }

    #[test]
    fn errors_name_the_full_path_of_the_field() {
        let message = |value: Value, strict| {
            let error = read::<(Scalars, ListedFields)>(&value, strict).unwrap_err();
            let said =
                error.message.trim_start_matches('`').starts_with(error.json()["error"]["param"].as_str().unwrap());
            assert!(said, "{error:?}");
            error.message
        };
        for (value, says) in [
            (json!({ "number": "hot" }), "number: expected a number, got \"hot\""),
            (json!({ "count": 1.5 }), "count: expected a whole number of at least 0, got 1.5"),
            (json!({ "count": -1.0 }), "count: expected a whole number of at least 0, got -1.0"),
            (json!({ "limit": -1.5 }), "limit: expected a whole number, got -1.5"),
            (json!({ "seed": -0.5 }), "seed: expected a whole number, got -0.5"),
            (json!({ "on": "yes" }), "on: expected true or false, got \"yes\""),
            (json!({ "text": 7 }), "text: expected a string, got 7"),
            (json!({ "list": 7 }), "list: expected a list of list, got 7"),
            (json!({ "list": [7] }), "list[0]: expected an object, got 7"),
            (json!({ "list": [{ "kind": "two" }, {}] }), "list[1].kind: expected one or two, got null"),
            (json!({ "list": [{ "kind": "one", "a": 7 }] }), "list[0].a: expected a string, got 7"),
            (json!({ "list": [{ "kind": "one", "b": 7 }] }), "`list[0].b` is not supported; leave it out"),
            (json!({ "other": 7 }), "`other` is not supported; leave it out"),
        ] {
            assert_eq!(message(value, false), says);
        }
        assert!(message(json!({ "seed": 1e300 }), false).starts_with("seed: expected a whole number, got 1e"));
        assert_eq!(message(json!({ "hint": 7 }), true), "`hint` is not supported; leave it out");
        assert_eq!(message(json!({ "limit": -1 }), true), "limit: expected a whole number of at least 0, got -1");
        let long = message(json!({ "on": "x".repeat(500) }), false);
        assert!(long.ends_with("x…") && long.len() < 150, "{long}");
        for body in ["", "{", "[]", "\"x\"", "{\"a\": 1e999}", "\u{0}"] {
            assert_eq!(parse_fields::<Scalars>(body.as_bytes(), false).unwrap_err().status, 400, "{body}");
        }
        let deep = parse_fields::<Scalars>(&"[".repeat(100_000).into_bytes(), false);
        assert!(deep.unwrap_err().message.contains("not JSON"));
    }
}
