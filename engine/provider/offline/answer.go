package offline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"trill/engine/message"
	"trill/engine/provider"
)

// rehearsal ends every text, so that nobody takes it for a model's.
const rehearsal = "_(Rehearsal: no language model is connected.)_"

const setUp = "To connect a real model, set `provider`, `base_url`, `api_key` and `model` under `[models.default]` in the configuration and restart me."

const abilities = `I am a rehearsal, not a language model: I follow a few fixed phrases, so that you can try out everything around a model. Try one of these:

- list files
- read notes.md
- search for "hello"
- run ` + "`ls -l`" + `
- write notes.md: hello
- replace "hello" with "good day" in notes.md
- note: the printer is on the second floor
- what did I say earlier?

Steps can follow each other: "write a.txt: hi, then read a.txt". `

// answer decides what to say and which tools to call.
func answer(req *provider.Request) (string, []message.Call) {
	c := read(req.Messages)
	var said []string
	if len(c.results) > 0 {
		said = append(said, c.report())
	}
	// Steps that took a call are counted by their calls in the history; what was
	// to be said before the last of them has been said.
	taken := 0
	for _, step := range c.steps() {
		text, call := c.do(req, step)
		switch {
		case call != nil && taken == c.done:
			return strings.Join(append(said, text), "\n\n"), []message.Call{*call}
		case call != nil:
			taken++
		case taken == c.done:
			said = append(said, text)
		}
	}
	if len(said) == 0 {
		said = append(said, "There is nothing for me to answer. "+setUp)
	}
	return end(said), nil
}

// end closes an answer that calls no tool.
func end(said []string) string {
	return strings.Join(append(said, rehearsal), "\n\n")
}

// conversation is a request's messages, as far as they matter.
type conversation struct {
	before  []string // what people said earlier, the oldest first
	asked   []string // the newest messages of people, which are to be answered
	fresh   bool     // asked is newer than every result
	done    int      // steps of asked that have been tried
	calls   []message.Call
	results []message.Message // of calls, and newer than any answer
}

// read finds what is to be answered: the messages since the last answer that
// called no tool.
func read(msgs []message.Message) conversation {
	start := 0
	for i, m := range msgs {
		if m.Role == message.Assistant && len(m.Calls) == 0 {
			start = i + 1
		}
	}
	var c conversation
	for _, m := range msgs[:start] {
		if m.Role == message.User && !aside.MatchString(m.Text) {
			c.before = append(c.before, body(m.Text))
		}
	}
	for _, m := range msgs[start:] {
		switch m.Role {
		case message.User:
			if c.done > 0 && !c.fresh {
				// Something was added while tools ran: that goes on from here.
				c.before = append(c.before, c.asked...)
				c.asked, c.done = nil, 0
			}
			c.asked, c.fresh = append(c.asked, body(m.Text)), true
		case message.Assistant:
			c.done++
			c.fresh = false
			c.calls, c.results = m.Calls, nil
		case message.Tool:
			c.results = append(c.results, m)
		}
	}
	return c
}

// steps returns what the newest messages ask for; nothing once a step did not
// succeed, since the next ones may rest on it.
func (c *conversation) steps() []phrase {
	if !c.fresh && slices.ContainsFunc(c.results, func(m message.Message) bool { return m.Failed }) {
		return nil
	}
	var steps []phrase
	for _, text := range c.asked {
		steps = append(steps, parse(text)...)
	}
	// One word about what was not understood is enough.
	known := slices.DeleteFunc(slices.Clone(steps), func(p phrase) bool { return p.intent == intentNone })
	if len(known) == 0 && len(steps) > 0 {
		return steps[len(steps)-1:]
	}
	return known
}

// do takes one step: a text, a call, or both.
func (c *conversation) do(req *provider.Request, p phrase) (string, *message.Call) {
	switch p.intent {
	case intentHello:
		return "Hello! I am a rehearsal, not a language model. Say `help` to see which phrases I know.", nil
	case intentHelp:
		return abilities + setUp, nil
	case intentThanks:
		return "You are welcome!", nil
	case intentRecall:
		return c.recall(), nil
	case intentNone:
		return c.lost(), nil
	}
	tool, args, doing := c.call(p)
	if !slices.ContainsFunc(req.Tools, func(t provider.Tool) bool { return t.Name == tool }) {
		return fmt.Sprintf("For that I would need the tool `%s`, which I do not have here.", tool), nil
	}
	return doing, &message.Call{Tool: tool, Args: encode(args)}
}

// encode keeps < and & readable, as people are asked about the call.
func encode(args map[string]string) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(args) // a map of strings cannot fail to encode
	return bytes.TrimSpace(b.Bytes())
}

// call turns a step into the tool it needs.
func (c *conversation) call(p phrase) (tool string, args map[string]string, doing string) {
	switch p.intent {
	case intentRead:
		return "read_file", map[string]string{"path": p.path}, "I will read " + code(p.path) + "."
	case intentList:
		path := p.path
		if path == "" {
			path = "."
		}
		return "list_dir", map[string]string{"path": path}, "I will look which files there are."
	case intentSearch:
		args := map[string]string{"pattern": p.pattern}
		if p.path != "" {
			args["path"] = p.path
		}
		return "search", args, "I will search for " + code(p.pattern) + "."
	case intentShell:
		return "shell", map[string]string{"command": p.command}, "I will run " + code(p.command) + "."
	case intentEdit:
		return "edit_file", map[string]string{"path": p.path, "old": p.old, "new": p.text}, "I will change " + code(p.path) + "."
	case intentNote:
		return "write_file", map[string]string{"path": notesFile, "content": c.notes()}, "I will write that into " + code(notesFile) + "."
	}
	return "write_file", map[string]string{"path": p.path, "content": p.text + "\n"}, "I will write " + code(p.path) + "."
}

// notes is everything that was to be noted in this conversation: the file is
// written anew each time.
func (c *conversation) notes() string {
	var b strings.Builder
	for _, text := range slices.Concat(c.before, c.asked) {
		for _, p := range parse(text) {
			if p.intent == intentNote {
				fmt.Fprintf(&b, "- %s\n", p.text)
			}
		}
	}
	return b.String()
}

// report tells what came of the calls.
func (c *conversation) report() string {
	var said []string
	for _, r := range c.results {
		did := deed{"use", "used", code(r.Tool)}
		for _, call := range c.calls {
			if call.ID == r.CallID {
				did = deedOf(call)
			}
		}
		text := strings.TrimSpace(clean(r.Text))
		switch {
		case denied(r):
			said = append(said, "That was not allowed, so I left it: "+code(oneLine(text)))
		case r.Failed:
			said = append(said, fmt.Sprintf("I tried to %s %s, but that did not work:\n\n%s", did.verb, did.object, quote(text)))
		case text == "":
			said = append(said, fmt.Sprintf("I %s %s. It gave no output.", did.past, did.object))
		case did.past == "wrote" || did.past == "changed":
			said = append(said, fmt.Sprintf("I %s %s (%s).", did.past, did.object, code(oneLine(text))))
		default:
			said = append(said, fmt.Sprintf("I %s %s:\n\n%s", did.past, did.object, quote(text)))
		}
	}
	return strings.Join(said, "\n\n")
}

// denied reports whether a person or a rule said no.
func denied(r message.Message) bool {
	text := strings.ToLower(r.Text)
	return r.Failed && (strings.HasPrefix(text, "not allowed") || strings.HasPrefix(text, "denied") || strings.HasPrefix(text, "refused"))
}

// deed is what a call does, in words.
type deed struct {
	verb, past, object string
}

func deedOf(c message.Call) deed {
	var args map[string]any
	_ = json.Unmarshal(c.Args, &args) // what is missing is shown as missing
	arg := func(name string) string {
		s, _ := args[name].(string)
		return code(s)
	}
	switch c.Tool {
	case "read_file":
		return deed{"read", "read", arg("path")}
	case "list_dir":
		return deed{"look into", "looked into", arg("path")}
	case "search":
		return deed{"search for", "searched for", arg("pattern")}
	case "shell":
		return deed{"run", "ran", arg("command")}
	case "edit_file":
		return deed{"change", "changed", arg("path")}
	case "write_file":
		return deed{"write", "wrote", arg("path")}
	}
	return deed{"use", "used", code(c.Tool)}
}

// maxRecalled is how many earlier messages are repeated.
const maxRecalled = 5

// recall tells what people said before.
func (c *conversation) recall() string {
	earlier := slices.DeleteFunc(slices.Clone(c.before), func(s string) bool { return s == "" })
	if len(earlier) == 0 {
		return "Nothing yet: this is the first message of yours that I can see."
	}
	earlier = earlier[max(0, len(earlier)-maxRecalled):]
	var b strings.Builder
	b.WriteString("Before this, you said:\n")
	for _, s := range earlier {
		b.WriteString("\n- " + code(oneLine(s)))
	}
	return b.String()
}

// lost admits that a message was not understood.
func (c *conversation) lost() string {
	text := ""
	if len(c.asked) > 0 {
		text = oneLine(c.asked[len(c.asked)-1])
	}
	if text == "" {
		return "I am a rehearsal, not a language model, and there is no text that I could read. " + setUp
	}
	return "I am a rehearsal, not a language model, so all I can say is that I read this:\n\n" +
		code(text) + "\n\nSay `help` to see which phrases I know. " + setUp
}

const (
	maxLine   = 160  // runes of a text shown in a line
	maxQuoted = 1500 // bytes of a result
	maxLines  = 30   // lines of a result
)

// oneLine makes a text of a person or a tool fit for a line.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(clean(s)), " ")
	if r := []rune(s); len(r) > maxLine {
		s = string(r[:maxLine]) + "…"
	}
	return s
}

// code shows a text as it is: no markup of it takes effect.
func code(s string) string {
	s = strings.ReplaceAll(strings.Join(strings.Fields(clean(s)), " "), "`", "'")
	if s == "" {
		return "(nothing)"
	}
	return "`" + s + "`"
}

// clean drops what is not for reading: control characters but line breaks and
// tabs, and marks that turn or hide text.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// quote shows a clean text as a block, its beginning if it is long. The fence is
// longer than any in the text.
func quote(s string) string {
	lines := strings.Split(s, "\n")
	cut := false
	if len(lines) > maxLines {
		lines, cut = lines[:maxLines], true
	}
	s = strings.Join(lines, "\n")
	if len(s) > maxQuoted {
		s, cut = strings.ToValidUTF8(s[:maxQuoted], ""), true
	}
	if cut {
		s += "\n…"
	}
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	return fence + "\n" + s + "\n" + fence
}
