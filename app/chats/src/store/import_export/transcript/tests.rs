use super::{super::FileFormat, *};
use crate::store::Store;

/// Title, system prompt, and messages with their authors: `u` for the user, the model's name, or
/// `a`.
fn told(text: &str) -> (String, String, Vec<(String, String)>) {
    let mut store = Store::in_memory().unwrap();
    let id = store.import(FileFormat::Markdown, text).unwrap().added[0];
    let chat = store.chat(id).unwrap();
    let said = store.branch(id).unwrap().into_iter().map(|message| {
        let by = match message.speaker {
            Speaker::User => "u".to_owned(),
            Speaker::Assistant | Speaker::Tool => message.model.unwrap_or_else(|| "a".to_owned()),
        };
        (by, message.content)
    });
    (chat.title, chat.system_prompt, said.collect())
}

fn check(text: &str, title: &str, system: &str, said: &[(&str, &str)]) {
    let said: Vec<(String, String)> = said.iter().map(|(by, words)| ((*by).to_owned(), (*words).to_owned())).collect();
    assert_eq!(told(text), (title.to_owned(), system.to_owned(), said), "{text}");
}

#[test]
fn read_accepts_exports_of_earlier_versions() {
    let said = [("u", "Tell me of a frog. \u{1f438}"), ("storyteller", "No!")];
    let text =
        "# Frogs\n\n## System\n\nBe brief.\n\n## User\n\nTell me of a frog. \u{1f438}\n\n## storyteller\n\nNo!\n";
    check(text, "Frogs", "Be brief.", &said);
    check(&text.replace('\n', "\r\n"), "Frogs", "Be brief.", &said);

    // Headings and code in messages, a second model, an answer without a model, and an empty
    // answer.
    let text = "# Chat\n\n## User\n\n## Plan\n\nWhy?\n\n## gemma\n\n## Steps\n\nOne.\n\n```md\n## User\n```\n\n## User\n\nGo on.\n\n\
        ## gemma\n\n## Steps\n\n## User\n\n## Assistant\n\n## Plan\n\nSo.\n\n## User\n\nAnd?\n\n## qwen 3\n\n```c\nint x;\n";
    let want = [
        ("u", "## Plan\n\nWhy?"),
        ("gemma", "## Steps\n\nOne.\n\n```md\n## User\n```"),
        ("u", "Go on."),
        ("gemma", "## Steps"),
        ("u", ""),
        ("a", "## Plan\n\nSo."),
        ("u", "And?"),
        ("qwen 3", "```c\nint x;"),
    ];
    check(text, "Chat", "", &want);
}

#[test]
fn read_accepts_transcripts_of_other_programs() {
    let both = [("u", "Why?"), ("a", "So.\n\nAnd so.")];
    for text in [
        "## User\n\nWhy?\n\n## Assistant\n\nSo.\n\nAnd so.\n",
        "### **You:**\nWhy?\n### \u{1f916} AI ###\nSo.\n\nAnd so.",
        "**User:** Why?\n\n**Assistant:** So.\n\nAnd so.\n",
        "**user**\n\nWhy?\n\n**assistant**\n\nSo.\n\nAnd so.\n\n",
        "__Human__: Why?\n\n__Bot__:\nSo.\n\nAnd so.",
        "Human: Why?\n\nAssistant: So.\n\nAnd so.\n",
        "Exported by something\n\n#### Prompt:\nWhy?\n\n---\n\n#### Response:\nSo.\n\nAnd so.\n\n---\n",
    ] {
        check(text, "Why?", "", &both);
    }
    let text = "# Of frogs\n\nCreated: today\n\n**System:** Be brief.\n\n**You:**\n\n    code?\n\n**ChatGPT:**\n\nSee:\n\n## User\n\nUser: x\n\n\
        **System:** Be kind.\n\n**Note:** no name\n\n**Assistant (gemma 3):** Yes.\n";
    let want = [("u", "    code?"), ("ChatGPT", "See:\n\n## User\n\nUser: x"), ("gemma 3", "Yes.")];
    let (system, want) = ("Be brief.\n\nBe kind.\n\n**Note:** no name", want);
    check(text, "Of frogs", system, &want);
    let text =
        "## User\n\nWhy?\n\n## Prompt\n\n## assistant:\n\nSo.\n\n## Response\n\n## Claude\n\n**User:** x\n\n## User\n";
    check(
        text,
        "Why?",
        "",
        &[("u", "Why?\n\n## Prompt"), ("a", "So.\n\n## Response\n\n## Claude\n\n**User:** x"), ("u", "")],
    );
    let text = "**You:** Why?\n\n**ChatGPT:** So.\n\n**Claude:** No.\n\n**Answer:** 42\n\n**Question:** and?";
    let want = [("u", "Why?"), ("ChatGPT", "So."), ("Claude", "No.\n\n**Answer:** 42\n\n**Question:** and?")];
    check(text, "Why?", "", &want);
    check("## You said:\n\n```\n## ChatGPT said:\n\nunclosed", "```", "", &[("u", "```"), ("ChatGPT", "unclosed")]);
}

#[test]
fn read_refuses_text_without_speakers_and_names_its_headings() {
    let refused = |text: &str| {
        let mut store = Store::in_memory().unwrap();
        let error = store.import(FileFormat::Markdown, text).unwrap_err().to_string();
        assert!(store.chats().unwrap().is_empty());
        error
    };
    let expected = "the file: expected a conversation with headings such as \u{201c}## User\u{201d} and \u{201c}## Assistant\u{201d}, got ";
    assert_eq!(refused(""), format!("{expected}text without a heading"));
    assert_eq!(refused("Dear diary,\nNote: nothing happened.\nMe: no."), format!("{expected}text without a heading"));
    let text = "# Thermocline\n## Use\n```\n## User\n```\n### C#\n## Tests ##\n## Limits\n";
    let headings = "the headings \u{201c}Thermocline\u{201d}, \u{201c}Use\u{201d}, \u{201c}C#\u{201d}, \u{201c}Tests\u{201d} and 1 more";
    assert_eq!(refused(text), format!("{expected}{headings}"));
}
