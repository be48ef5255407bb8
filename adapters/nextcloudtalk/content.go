package nextcloudtalk

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"

	"trill/adapters"
)

const (
	maxName        = 200       // code points of a name that is shown
	maxLink        = 2000      // bytes
	maxText        = 256 << 10 // bytes of a text after its placeholders are filled
	maxAttachments = 50
)

// content is a message as the server stores it: text with placeholders, and what
// they stand for. A person can type what looks like a placeholder, so none
// carries authority.
type content struct {
	message string
	params  map[string]param
}

// param is an object in a message: who is mentioned, a file, a poll.
type param struct{ kind, id, name, size, mime, link string }

// readContent decodes object.content, which is JSON in a JSON string.
func readContent(data []byte) (content, error) {
	var c content
	r := adapters.NewJSONReader(data)
	r.Object(func(name []byte) {
		switch string(name) {
		case "message":
			c.message = r.String()
		case "parameters":
			// An empty set is an array, because PHP has only one kind of both.
			looseObject(r, func(name []byte) {
				if r.Kind() != '{' {
					return // what is no object has no text
				}
				if c.params == nil {
					c.params = make(map[string]param)
				}
				c.params[string(name)] = readParam(r)
			})
		}
	})
	if err := r.End(); err != nil {
		return content{}, fmt.Errorf("content: %w", err)
	}
	return c, nil
}

func readParam(r *adapters.JSONReader) param {
	var p param
	r.Object(func(name []byte) {
		switch string(name) {
		case "type":
			p.kind = loose(r)
		case "id":
			p.id = loose(r)
		case "name":
			p.name = loose(r)
		case "size":
			p.size = loose(r)
		case "mimetype":
			p.mime = loose(r)
		case "link":
			p.link = loose(r)
		}
	})
	return p
}

// shares reports whether a file or another object was shared.
func (c content) shares() bool {
	for key := range c.params {
		if isFile(key) || key == "object" {
			return true
		}
	}
	return false
}

// isFile reports whether a placeholder is a shared file: file, file1, file-2.
func isFile(key string) bool {
	n, ok := strings.CutPrefix(key, "file")
	return ok && strings.Trim(n, "-0123456789") == ""
}

// text returns the message with its placeholders filled. What they are filled
// with is not looked at again.
func (c content) text() string {
	if len(c.params) == 0 {
		return cleanText(c.message)
	}
	var b strings.Builder
	used := make(map[string]bool, len(c.params))
	rest := c.message
	for b.Len() < maxText {
		open := strings.IndexByte(rest, '{')
		if open < 0 {
			break
		}
		b.WriteString(rest[:open])
		rest = rest[open:]
		end := strings.IndexAny(rest[1:], "{}") + 1
		if end > 0 && rest[end] == '}' {
			if p, ok := c.params[rest[1:end]]; ok {
				used[rest[1:end]] = true
				b.WriteString(p.text(rest[1:end]))
				rest = rest[end+1:]
				continue
			}
		}
		b.WriteByte('{')
		rest = rest[1:]
	}
	b.WriteString(rest)
	// A caption stands alone in the message; the file is only a parameter.
	for _, key := range slices.Sorted(maps.Keys(c.params)) {
		if isFile(key) && !used[key] && b.Len() < maxText {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(c.params[key].text(key))
		}
	}
	text := b.String()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return cleanText(text)
}

// text returns what stands for the parameter.
func (p param) text(key string) string {
	name := clean(p.name, maxName)
	switch {
	case p.kind == "file":
		facts := []string{name}
		if p.mime != "" {
			facts = append(facts, clean(p.mime, maxName))
		}
		if n := p.bytes(); n > 0 {
			facts = append(facts, humanize.Bytes(uint64(n)))
		}
		return "[file: " + strings.Join(facts, ", ") + "]"
	case strings.HasPrefix(key, "mention-"):
		if p.kind == "call" {
			return "@all"
		}
		if name == "" {
			name = clean(p.id, maxName)
		}
		return "@" + name
	case name == "":
		return "[" + clean(p.kind, maxName) + "]"
	case key == "object":
		return "[" + clean(p.kind, maxName) + ": " + name + "]"
	default:
		return name
	}
}

// bytes is the size, 0 when it is not said.
func (p param) bytes() int64 {
	n, err := strconv.ParseInt(p.size, 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// attachments returns the files, in the order of their keys.
func (c content) attachments() []adapters.Attachment {
	if len(c.params) == 0 {
		return nil
	}
	var files []adapters.Attachment
	for _, key := range slices.Sorted(maps.Keys(c.params)) {
		p := c.params[key]
		if p.kind != "file" || !isFile(key) || len(files) == maxAttachments {
			continue
		}
		f := adapters.Attachment{
			ID:   clean(p.id, maxName),
			Name: clean(p.name, maxName),
			MIME: clean(p.mime, maxName),
			Size: p.bytes(),
		}
		if link := clean(p.link, maxLink); len(p.link) <= maxLink && origin(link) != "" {
			f.Link = link
		}
		files = append(files, f)
	}
	return files
}

// clean makes a name that somebody chose fit to be shown: one line, at most n
// code points, and nothing in it that cannot be seen or turns the line around.
func clean(s string, n int) string {
	plain := len(s) <= n
	for i := 0; plain && i < len(s); i++ {
		plain = ' ' <= s[i] && s[i] <= '~'
	}
	if plain {
		return strings.TrimSpace(s)
	}
	var b strings.Builder
	b.Grow(min(len(s), n))
	for _, r := range s {
		switch {
		case r == utf8.RuneError, invisible(r), r == '\u200c', r == '\u200d':
			continue
		case unicode.IsSpace(r):
			r = ' '
		}
		if n--; n < 0 {
			b.WriteRune('…')
			break
		}
		b.WriteRune(r)
	}
	return strings.TrimSpace(b.String())
}

// cleanText removes from what somebody wrote what cannot be seen. Joiners stay:
// emoji and several scripts need them.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && invisible(r) {
			return -1
		}
		return r
	}, s)
}

// invisible reports whether r is a control character (the escape of terminals is
// one), changes the direction of text, has no width, or is a Unicode tag.
func invisible(r rune) bool {
	switch {
	case r < ' ', 0x7f <= r && r <= 0x9f:
		return true
	case r < 0xad:
		return false
	case r == '\u00ad', r == '\u061c', r == '\u180e', r == '\u200b', r == '\u200e', r == '\u200f', r == '\ufeff',
		'\u2028' <= r && r <= '\u202e', '\u2060' <= r && r <= '\u206f', '\ufff9' <= r && r <= '\ufffb', '\U000e0000' <= r && r <= '\U000e007f':
		return true
	}
	return false
}

// Split cuts an answer into messages the server takes, and breaks every @ that
// it would read as a mention. The limit counts code points.
func (a *Adapter) Split(text string) []string {
	limit := int(a.limit.Load())
	// A part can start with an @ that followed a letter before it was cut.
	// Its mark needs room.
	parts := adapters.Split(defuse(strings.ToValidUTF8(text, "\ufffd")), limit-1, utf8.RuneCountInString)
	for i, p := range parts {
		parts[i] = defuse(p)
	}
	return parts
}

const wordJoiner = "\u2060"

// defuse puts a word joiner after every @ that could start a mention. The server
// looks for mentions in code as well, and knows nothing but the text before and
// after: an @ after a letter, digit or underscore starts none, which spares
// e-mail addresses.
func defuse(text string) string {
	var b strings.Builder
	done := 0
	for i := 0; i < len(text); i++ {
		if text[i] != '@' || i > 0 && (isAlnum(text[i-1]) || text[i-1] == '_') {
			continue
		}
		next := text[i+1:]
		if r, _ := utf8.DecodeRuneInString(next); next == "" || unicode.IsSpace(r) || strings.HasPrefix(next, wordJoiner) {
			continue
		}
		b.WriteString(text[done : i+1])
		b.WriteString(wordJoiner)
		done = i + 1
	}
	if done == 0 {
		return text
	}
	b.WriteString(text[done:])
	return b.String()
}
