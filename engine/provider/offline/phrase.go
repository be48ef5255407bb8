package offline

import (
	"regexp"
	"strings"
)

// intent is what a message asks for.
type intent string

// The intents.
const (
	intentNone   intent = ""
	intentHello  intent = "hello"
	intentHelp   intent = "help"
	intentThanks intent = "thanks"
	intentRecall intent = "recall" // what was said before
	intentRead   intent = "read"
	intentList   intent = "list"
	intentSearch intent = "search"
	intentShell  intent = "shell"
	intentEdit   intent = "edit"
	intentWrite  intent = "write"
	intentNote   intent = "note" // add text to the notes of this conversation
)

// phrase is a message, understood.
type phrase struct {
	intent  intent
	path    string // read, list, search, edit, write
	pattern string // search
	command string // shell
	old     string // edit
	text    string // write, note; the new text of edit
}

// notesFile is where notes go.
const notesFile = "notes.md"

// pattern is one form that a step may have. Its groups are named for the fields
// of a phrase.
type pattern struct {
	intent intent
	expr   *regexp.Regexp
}

// A value is quoted or a single word; a file's name also looks like one, so that
// not every sentence is taken for a wish to open something.
const (
	quoted = "`[^`]+`|\"[^\"]+\"|'[^']+'"
	word   = quoted + `|\S+`
	file   = quoted + `|\S*[./]\S*|README|LICENSE|Makefile|Dockerfile`
)

// form compiles a pattern: {path} is a word, {path:file} a file's name, and
// {path...} everything that follows.
func form(i intent, expr string) pattern {
	for _, name := range []string{"path", "pattern", "command", "old", "text"} {
		expr = strings.NewReplacer(
			"{"+name+"}", "(?P<"+name+">"+word+")",
			"{"+name+":file}", "(?P<"+name+">"+file+")",
			"{"+name+":quoted}", "(?P<"+name+">"+quoted+")",
			"{"+name+"...}", "(?P<"+name+">.+)",
		).Replace(expr)
	}
	return pattern{i, regexp.MustCompile(`(?is)^(?:` + expr + `)$`)}
}

// patterns is every form, in the order they are tried.
var patterns = []pattern{
	form(intentShell, `\$ *{command...}`),
	form(intentShell, "(?:run|execute)\\b[^`]{0,20}(?P<command>`[^`]+`).{0,40}"),
	form(intentShell, `(?:run|execute)(?: the)?(?: command| cmd)?(?:: *| +){command:quoted}`),
	form(intentShell, `(?:run|execute)(?: the)?(?: command| cmd)?(?:: *| +){command...}`),
	form(intentNote, `(?:make a |take a )?note(?: that|:) *{text...}`),
	form(intentNote, `remember(?: that|:) *{text...}`),
	form(intentWrite, `(?:write|create)(?: (?:the |a )?file)? {path:file}: *{text...}`),
	form(intentWrite, `(?:write|put|save) {text...} (?:to|into|in)(?: the file)? {path:file}`),
	form(intentEdit, `(?:replace|change) {old} (?:with|by|to|into) {text} in(?: the file)? {path:file}`),
	form(intentList, `(?:list|show|what are|show me)(?: me)?(?: all)?(?: the| your)? files(?: (?:in|of|under)(?: {path})?)?`),
	form(intentList, `(?:what|which) files(?: are| are there| are here| do you (?:have|see))?(?: (?:in|under)(?: {path})?)?`),
	form(intentList, `ls(?: {path})?`),
	form(intentSearch, `(?:search(?: for)?|look for|grep|find) {pattern}(?: in {path})?`),
	form(intentSearch, `(?:search|look) for {pattern...}`),
	form(intentRead, `(?:read|open|cat|show|print)(?: me)?(?: the)?(?: file)? {path:file}`),
	form(intentRead, `(?:what is|what's|whats) in(?: the)?(?: file)? {path:file}`),
	form(intentRecall, `what did (?:i|we) (?:say|ask|tell|write)\b.{0,40}`),
	form(intentRecall, `what (?:was|were) my (?:first|last|earlier|previous) (?:message|messages|question|questions)`),
	form(intentRecall, `do you remember\b.{0,80}`),
	form(intentHelp, `(?:help|who are you|what are you|what can you do)\b.{0,40}`),
	form(intentHello, `(?:hello|hi|hey|good (?:morning|afternoon|evening)|moin|hallo)\b.{0,40}`),
	form(intentThanks, `(?:thanks|thank you|thx|bye|goodbye)\b.{0,40}`),
}

var (
	// header is the line before a person's text that says who wrote it.
	header = regexp.MustCompile(`^From [^\n]{1,300}:\n\n`)
	// trailer is what is put below a person's text.
	trailer = regexp.MustCompile(`(?s)\n+(?:\[attachment: |<untrusted-).*$`)
	// aside is a note of the program in a person's place.
	aside  = regexp.MustCompile(`^\[[^\n]*\](?:\n|$)`)
	polite = regexp.MustCompile(`(?i)^(?:(?:@\w+[,:]?|(?:hello|hi|hey)(?: \w+)?[,!]|(?:please|trill|now|and|also|(?:can|could|would) you)[,:]?) +)+`)
	then   = regexp.MustCompile(`(?i)(?:,|;|\.)? +(?:and +)?then,? +`)
	ending = regexp.MustCompile(`(?i)(?:[\s?!.]|,? please)+$`)
)

// body returns what a person wrote, without what stands around it.
func body(text string) string {
	text = header.ReplaceAllString(text, "")
	return strings.TrimSpace(trailer.ReplaceAllString("\n"+text, ""))
}

// maxSteps bounds one message.
const maxSteps = 8

// parse understands a person's message: the steps it asks for, one after the
// other. A message that is not understood is one step without an intent. Only
// what the person wrote counts, and of that only what stands at its beginning.
func parse(text string) []phrase {
	text = body(text)
	first, _, more := strings.Cut(text, "\n")
	whole := parseStep(text)
	if more && (whole.intent == intentWrite || whole.intent == intentNote) {
		return []phrase{whole} // a text of several lines may hold any word, "then" too
	}
	parts := then.Split(first, -1)
	if len(parts) > 1 && len(parts) <= maxSteps {
		steps := make([]phrase, 0, len(parts))
		for _, part := range parts {
			p := parseStep(part)
			if p.intent == intentNone {
				steps = nil
				break
			}
			steps = append(steps, p)
		}
		if steps != nil {
			return steps
		}
	}
	return []phrase{whole}
}

func parseStep(text string) phrase {
	text = strings.TrimSpace(text)
	text = text[len(polite.FindString(text)):]
	first, _, more := strings.Cut(text, "\n")
	for _, p := range patterns {
		subject := ending.ReplaceAllString(first, "")
		switch p.intent {
		case intentWrite, intentNote:
			subject = text
		case intentShell:
			subject = strings.TrimSpace(first)
		case intentHello, intentThanks, intentHelp:
			if more {
				continue // a greeting before something else
			}
		}
		m := p.expr.FindStringSubmatch(subject)
		if m == nil {
			continue
		}
		get := func(name string) string {
			if i := p.expr.SubexpIndex(name); i >= 0 {
				return unquote(m[i])
			}
			return ""
		}
		out := phrase{p.intent, get("path"), get("pattern"), get("command"), get("old"), get("text")}
		if out.intent == intentWrite {
			out.path = strings.TrimRight(out.path, ".,;!?")
		}
		return out
	}
	return phrase{}
}

// unquote takes a pair of marks off a value.
func unquote(s string) string {
	s = strings.TrimSpace(s)
	if len(s) >= 2 && strings.ContainsRune("`\"'", rune(s[0])) && s[len(s)-1] == s[0] && strings.Count(s, s[:1]) == 2 {
		return s[1 : len(s)-1]
	}
	return s
}
