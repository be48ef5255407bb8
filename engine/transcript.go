package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"

	"trill/engine/message"
	"trill/engine/session"
)

// transcript is the projection of a session's events to what the model is sent,
// and to where the run stands. It is built event by event and never from
// anything else, so a run that is taken up again sees what it saw before.
type transcript struct {
	last int64 // Seq of the newest event
	msgs []message.Message
	seqs []int64 // of the event behind each message

	// pending are the calls of the newest assistant message that have no result
	// yet, started those among them that were about to run.
	pending []message.Call
	started map[string]bool

	bytes int // of all messages
	// counted is the size of the prompt in tokens as the provider last reported
	// it, and countedAt what bytes was then.
	counted, countedAt int

	task     string // the newest request
	taskSeq  int64
	answered string // the newest text of the model
	ended    bool   // no run is open
}

// bytesPerToken is a cautious estimate for what the provider has not counted.
const bytesPerToken = 3

// tokens estimates the size of the prompt.
func (t *transcript) tokens() int {
	return t.counted + max(0, t.bytes-t.countedAt)/bytesPerToken
}

// apply takes in the next event.
func (t *transcript) apply(ev session.Event) {
	t.last = ev.Seq
	switch d := ev.Data.(type) {
	case *session.User:
		t.abandon(ev.Seq)
		t.ended = false
		text := userText(ev, d)
		if !d.Steered {
			t.task, t.taskSeq = text, ev.Seq
		}
		t.add(ev.Seq, message.Message{Role: message.User, Text: text})
	case *session.Assistant:
		t.abandon(ev.Seq)
		t.answered = d.Text
		t.add(ev.Seq, message.Message{Role: message.Assistant, Text: d.Text, Calls: d.Calls})
		t.pending = append(t.pending, d.Calls...)
		if d.Usage.Input > 0 {
			t.counted, t.countedAt = d.Usage.Input+d.Usage.Output, t.bytes
		}
	case *session.ToolStart:
		if t.started == nil {
			t.started = map[string]bool{}
		}
		t.started[d.CallID] = true
	case *session.ToolResult:
		for i, c := range t.pending {
			if c.ID == d.CallID {
				t.pending = append(t.pending[:i:i], t.pending[i+1:]...)
				break
			}
		}
		delete(t.started, d.CallID)
		t.add(ev.Seq, message.Message{Role: message.Tool, CallID: d.CallID, Tool: d.Tool, Text: d.Text, Failed: d.Failed})
	case *session.Trim:
		t.trim(d)
	case *session.End:
		t.abandon(ev.Seq)
		t.ended = true
	}
}

func (t *transcript) add(seq int64, m message.Message) {
	t.msgs = append(t.msgs, m)
	t.seqs = append(t.seqs, seq)
	t.bytes += messageBytes(m)
}

func messageBytes(m message.Message) int {
	n := len(m.Text) + 16
	for _, c := range m.Calls {
		n += len(c.Tool) + len(c.Args) + len(c.ID)
	}
	return n
}

// abandon answers calls that will never have a result, so that the messages
// stay valid for the model.
func (t *transcript) abandon(seq int64) {
	for _, c := range t.pending {
		t.add(seq, message.Message{Role: message.Tool, CallID: c.ID, Tool: c.Tool, Failed: true,
			Text: "No result: the run ended before the call did."})
	}
	t.pending, t.started = nil, nil
}

// trim drops the messages before d.From.
func (t *transcript) trim(d *session.Trim) {
	cut := 0
	for cut < len(t.seqs) && t.seqs[cut] < d.From {
		cut++
	}
	head := "[The beginning of this conversation is no longer shown.]"
	if d.Task != "" {
		head += "\n\nThe request being worked on:\n\n" + d.Task
	}
	msgs := append([]message.Message{{Role: message.User, Text: head}}, t.msgs[cut:]...)
	t.seqs = append([]int64{d.From}, t.seqs[cut:]...)
	t.msgs, t.bytes = msgs, 0
	for _, m := range msgs {
		t.bytes += messageBytes(m)
	}
	t.counted, t.countedAt = 0, 0
}

// cut returns where the prompt has to begin so that it has at most limit tokens:
// at the oldest message of a person or the model that allows it. It is 0 when
// nothing can be left out.
func (t *transcript) cut(limit int) int64 {
	perByte := 1.0 / bytesPerToken
	if t.countedAt > 0 {
		perByte = max(float64(t.counted)/float64(t.countedAt), 0.1)
	}
	best, size := int64(0), 0.0
	for i := len(t.msgs) - 1; i > 0; i-- {
		size += float64(messageBytes(t.msgs[i])) * perByte
		if size > float64(limit) && best != 0 {
			break
		}
		if t.msgs[i].Role != message.Tool && t.seqs[i] != t.seqs[i-1] {
			best = t.seqs[i]
		}
	}
	return best
}

// userText is what the model reads of a person's message. Everything a person
// can choose is either the text itself or made harmless.
func userText(ev session.Event, u *session.User) string {
	var b strings.Builder
	if u.Person != "" {
		_, id, _ := strings.Cut(u.Person, ":")
		name := cleanName(u.Name)
		if name == "" {
			name = "somebody"
		}
		fmt.Fprintf(&b, "From %s (%s), %s:\n\n", name, cleanName(id), ev.Time.UTC().Format("Mon 2006-01-02 15:04 UTC"))
	}
	b.WriteString(u.Text)
	for _, a := range u.Attachments {
		fmt.Fprintf(&b, "\n[attachment: %s]", cleanName(a))
	}
	if u.Quoted != "" {
		b.WriteString("\n\n")
		b.WriteString(fence(ev, "quoted message", u.Quoted))
	}
	return b.String()
}

// fence marks text of others as data. The mark differs from text to text, is the
// same every time, so that the prompt stays the same, and cannot stand inside.
func fence(ev session.Event, what, text string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", ev.Session, ev.Seq))
	mark := "untrusted-" + hex.EncodeToString(sum[:6])
	text = strings.ReplaceAll(text, "untrusted-", "untrusted\u2060-")
	return fmt.Sprintf("<%s source=%q>\n%s\n</%s>", mark, what, text, mark)
}

// cleanName makes a name that others chose fit for one line.
func cleanName(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return -1
		case strings.ContainsRune("()<>[]:`", r):
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 80 {
		s = string(r[:80]) + "…"
	}
	return s
}
