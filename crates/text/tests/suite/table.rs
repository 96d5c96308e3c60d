//! Grammars as clients send them, and grammars made to be hard: one table for the tests and for
//! the `masks` example, which measures them.

use lockstep_text::{GrammarSpec, ToolChoice, ToolFormat, Tools};
use serde_json::{Map, Value, json};

/// One grammar.
pub struct Case {
    /// What it is.
    pub name: &'static str,
    /// The grammar.
    pub spec: GrammarSpec,
    /// Outputs that it accepts, to be walked through; where there are none, drawn ones are.
    pub texts: Vec<String>,
}

fn case(name: &'static str, spec: GrammarSpec, texts: &[&str]) -> Case {
    Case { name, spec, texts: texts.iter().map(|t| (*t).to_owned()).collect() }
}

fn schema(name: &'static str, schema: Value, texts: &[&str]) -> Case {
    case(name, GrammarSpec::JsonSchema(schema), texts)
}

fn regex(name: &'static str, source: &str) -> Case {
    case(name, GrammarSpec::Regex(source.into()), &[])
}

fn lark(name: &'static str, source: String) -> Case {
    case(name, GrammarSpec::Lark(source), &[])
}

/// An object with `n` fields of ordinary kinds, all required.
fn fields(n: usize, prefix: &str) -> Value {
    let kinds = [
        json!({"type": "string", "description": "free text"}),
        json!({"type": "integer", "minimum": 0, "maximum": 100_000}),
        json!({"type": "number"}),
        json!({"type": "boolean"}),
        json!({"type": ["string", "null"], "maxLength": 200}),
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"enum": ["low", "middle", "high"]}),
        json!({"type": "string", "format": "date-time"}),
    ];
    let field = |i: usize| (format!("{prefix}_{i}"), kinds[i % kinds.len()].clone());
    let properties: Map<String, Value> = (0..n).map(field).collect();
    let required: Vec<&String> = properties.keys().collect();
    json!({"type": "object", "required": required, "properties": properties,
        "additionalProperties": false})
}

fn invoice() -> Value {
    json!({
        "type": "object",
        "properties": {
            "number": {"type": "string", "pattern": "^INV-[0-9]{4,8}$"},
            "date": {"type": "string", "format": "date"},
            "currency": {"enum": ["EUR", "USD", "GBP", "JPY"]},
            "from": {"$ref": "#/$defs/party"},
            "to": {"$ref": "#/$defs/party"},
            "lines": {"type": "array", "minItems": 1, "items": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer", "minimum": 1},
                    "price": {"type": "number"},
                },
                "required": ["text", "count", "price"],
                "additionalProperties": false,
            }},
            "note": {"anyOf": [{"type": "string", "maxLength": 200}, {"type": "null"}]},
        },
        "required": ["number", "date", "currency", "from", "to", "lines", "note"],
        "additionalProperties": false,
        "$defs": {"party": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 80},
                "email": {"type": "string", "format": "email"},
                "city": {"type": "string"},
            },
            "required": ["name", "email", "city"],
            "additionalProperties": false,
        }},
    })
}

const INVOICE: &str = "{\"number\": \"INV-20419\", \"date\": \"2024-02-29\", \"currency\": \"EUR\", \
    \"from\": {\"name\": \"Möbel & Söhne\", \"email\": \"office@moebel.example\", \"city\": \"Köln\"}, \
    \"to\": {\"name\": \"A. N. Other\", \"email\": \"a.n@other.example\", \"city\": \"York\"}, \
    \"lines\": [{\"text\": \"Chair, oak, \\\"old\\\"\", \"count\": 4, \"price\": 129.5}, \
    {\"text\": \"Delivery\", \"count\": 1, \"price\": 35}], \"note\": null}";

fn tree() -> Value {
    json!({"type": "object", "properties": {
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#"}},
    }, "required": ["label", "children"], "additionalProperties": false})
}

fn tools(n: usize) -> Tools {
    let one = |i: usize| {
        json!({"type": "function", "function": {
            "name": format!("tool_{i}"), "parameters": fields(6 + i % 4, "argument"), "strict": true,
        }})
    };
    Tools::parse(&(0..n).map(one).collect()).expect("tools in their form")
}

fn called(name: &'static str, n: usize, choice: ToolChoice, format: ToolFormat) -> Case {
    let parallel = true;
    case(name, GrammarSpec::Tools { tools: tools(n), choice, format, parallel }, &[])
}

/// What clients send.
pub fn ordinary() -> Vec<Case> {
    let choices: Vec<String> = (0..200).map(|i| format!("answer number {i}")).collect();
    let sum = "start: expr\nexpr: term | expr (\"+\" | \"-\") term\n\
               term: atom | term (\"*\" | \"/\") atom\natom: NUMBER | \"(\" expr \")\"\n\
               NUMBER: /[0-9]+(\\.[0-9]+)?/\n%ignore /[ ]/";
    vec![
        case("any JSON object", GrammarSpec::JsonObject, &[INVOICE]),
        schema("schema of an invoice", invoice(), &[INVOICE]),
        schema("schema of a tree", tree(), &[]),
        schema("schema of 40 fields", fields(40, "field"), &[]),
        schema("schema of 200 fields", fields(200, "field"), &[]),
        schema("string of at most 2000", json!({"type": "string", "maxLength": 2000}), &[]),
        schema("anyOf 8 objects of 8 fields", any_of(8, 8), &[]),
        called("8 tools, required", 8, ToolChoice::Required, ToolFormat::Hermes),
        called("8 tools, auto", 8, ToolChoice::Auto, ToolFormat::Hermes),
        called("64 tools, required", 64, ToolChoice::Required, ToolFormat::Plain),
        regex("regex of a date", "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"),
        regex("regex of an address", "[a-z0-9._%+-]+@[a-z0-9.-]+\\.[a-z]{2,8}"),
        regex("regex of 3 paragraphs", "(([^\\n]{1,400}\\n){1,8}\\n){3}"),
        regex("200 choices", &choices.join("|")),
        lark("grammar of a sum", sum.into()),
    ]
}

fn any_of(objects: usize, n: usize) -> Value {
    let one = |i: usize| fields(n, &format!("kind_{i}"));
    json!({"anyOf": (0..objects).map(one).collect::<Vec<_>>()})
}

fn one_of(objects: usize, n: usize) -> Value {
    let one = |i: usize| {
        let mut object = fields(n, "field");
        object["properties"]["field_0"] = json!({"const": format!("kind {i}")});
        object
    };
    json!({"oneOf": (0..objects).map(one).collect::<Vec<_>>()})
}

fn optional(objects: usize, n: usize) -> Value {
    let mut all = one_of(objects, n);
    for object in all["oneOf"].as_array_mut().into_iter().flatten() {
        object["required"] = json!([]);
        object["additionalProperties"] = json!(true);
    }
    all
}

fn chain(links: usize) -> Value {
    let link = |i: usize| {
        let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
        (format!("d{i}"), json!({"type": "object", "properties": {"a": next}}))
    };
    let mut defs: Map<String, Value> = (0..links).map(link).collect();
    defs.insert(format!("d{links}"), json!({"type": "string"}));
    json!({"$ref": "#/$defs/d0", "$defs": defs})
}

/// Grammars made to be hard; some of them compile, some cannot.
pub fn hostile() -> Vec<Case> {
    let cycle: String = (0..1_500)
        .map(|i| format!("r{i}: \"x\" r{}\n", (i + 1) % 1_500))
        .chain(["start: r0\n".to_owned()])
        .collect();
    let mutual = json!({"$ref": "#/$defs/a", "$defs": {
        "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}});
    let endless = json!({"$ref": "#/$defs/a", "$defs": {"a": {
        "type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"],
        "additionalProperties": false}}});
    let wide: Vec<String> = (0..3_000).map(|i| format!("\"w{i}\" start?")).collect();
    vec![
        schema("$ref to itself", json!({"$ref": "#"}), &[]),
        schema("$defs that name each other", mutual, &[]),
        schema("an object that holds itself", endless, &[]),
        schema("allOf of itself", json!({"allOf": [{"$ref": "#"}, {"type": "object"}]}), &[]),
        schema("a chain of 1500 references", chain(1_500), &[]),
        schema("oneOf 200 objects of 20 fields", one_of(200, 20), &[]),
        schema("oneOf 200 of optional fields", optional(200, 20), &[]),
        schema("anyOf 200 objects of 20 fields", any_of(200, 20), &[]),
        schema("oneOf 200 strings", json!({"oneOf": vec![json!({"type": "string"}); 200]}), &[]),
        schema(
            "1000 pattern properties",
            json!({"type": "object", "patternProperties": (0..1000).map(|i|
                (format!("^[a-z]{{1,{}}}$", i + 1), json!({"type": "integer"})))
                .collect::<Map<String, Value>>()}),
            &[],
        ),
        schema(
            "array of 100000 to 200000",
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 100_000,
                "maxItems": 200_000}),
            &[],
        ),
        schema("string of 1000000", json!({"type": "string", "minLength": 1_000_000}), &[]),
        schema(
            "pattern of nested repeats",
            json!({"type": "string", "pattern": "^((a{100}){100}){100}$"}),
            &[],
        ),
        regex("matches nothing", "[^\\s\\S]"),
        regex("((a{100}){100}){100}", "((a{100}){100}){100}"),
        regex("(([a-z]{1,100}){1,100}){1,100}", "(([a-z]{1,100}){1,100}){1,100}"),
        regex("a{1000000000}", "a{1000000000}"),
        regex("a{100000}", "a{100000}"),
        regex("ba{100000}|c", "ba{100000}|c"),
        regex("[ab]{100000}c|[bc]{99999}d", "[ab]{100000}c|[bc]{99999}d"),
        regex("(.*a.{20})&", "(.*a.{20}|.*b.{21}|.*c.{22})x"),
        regex("(a|b)*a(a|b){60}", "(a|b)*a(a|b){60}"),
        regex("\\w*x\\w{40}", "(\\w*x\\w{40})+"),
        regex("(a?){500}a{500}", "(a?){500}a{500}"),
        lark("start: start", "start: start".into()),
        lark("rules that name each other", "start: a\na: b\nb: a".into()),
        lark("a cycle of 1500 rules", cycle),
        lark("right recursion", "start: \"a\" start | \"b\"".into()),
        lark("ambiguous doubling", "start: start start | /[a-z]/ | \"ab\"".into()),
        lark("ambiguous tripling", "start: start start start | /[a-z]/".into()),
        lark("nullable doubling", "start: start start | /[a-z]?/".into()),
        lark("3000 alternatives that recurse", format!("start: {}", wide.join(" | "))),
        lark("rule repeats", "start: a{1,10000}\na: b{1,10000}\nb: \"x\" | \"y\"".into()),
    ]
}
