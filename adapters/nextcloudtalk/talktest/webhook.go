package talktest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/rivo/uniseg"

	"trill/adapters/nextcloudtalk"
)

// File is a shared file.
type File struct {
	ID, Name, MIME, Link string
	Size                 int64
}

// PostOptions is what can be special about a message; zero fields are the usual.
type PostOptions struct {
	Name        string // display name of the actor; the id with a capital
	Participant int    // type of participant; 3, a user, or 4 for guests
	ReplyTo     int64  // id of a message in the room
	Thread      string // object.threadId
	File        *File  // the text becomes its caption
	// Parameters is raw JSON for content.parameters, in place of what follows
	// from the other fields.
	Parameters string
}

// Delivery is a webhook and its answer.
type Delivery struct {
	ID     int64 // of the message in the room, 0 when it is none
	Header http.Header
	Body   []byte
	Status int // of the answer
}

// AddRoom makes a room, without the bot in it.
func (s *Server) AddRoom(token, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rooms[token] = newRoom(name)
}

// Enable adds the bot to a room, made if need be, and tells it with Join.
func (s *Server) Enable(ctx context.Context, token string) (Delivery, error) {
	return s.membership(ctx, token, "Join", true)
}

// Disable removes the bot from a room and tells it with Leave.
func (s *Server) Disable(ctx context.Context, token string) (Delivery, error) {
	return s.membership(ctx, token, "Leave", false)
}

func (s *Server) membership(ctx context.Context, token, kind string, enabled bool) (Delivery, error) {
	s.mu.Lock()
	in := s.room(token)
	in.enabled = enabled
	body := fmt.Appendf(nil, `{"type":%s,"actor":{"type":"Application","id":%s,"name":%s},"object":{"type":"Collection","id":%s,"name":%s}}`,
		quote(kind), quote(s.botID()), quote(s.conf.BotName), quote(token), quote(in.name))
	s.mu.Unlock()
	return s.Deliver(ctx, body)
}

// room returns the room, which is made with the bot in it when it is new.
func (s *Server) room(token string) *room {
	in, ok := s.rooms[token]
	if !ok {
		in = newRoom(token)
		in.enabled = true
		s.rooms[token] = in
	}
	return in
}

// Post writes a message as actor, such as "users/alice", and tells the bot. A room
// that does not exist is made, with the bot in it. The error is about the way to
// the bot; what the bot answered is in Status.
func (s *Server) Post(ctx context.Context, token, actor, text string, opts PostOptions) (Delivery, error) {
	id, body := s.postBody(token, actor, text, opts)
	d, err := s.Deliver(ctx, body)
	d.ID = id
	return d, err
}

// postBody stores the message and returns its webhook. It is written by hand,
// escaped as PHP does it, and fast enough for benchmarks.
func (s *Server) postBody(token, actor, text string, o PostOptions) (int64, []byte) {
	name := o.Name
	if name == "" && !strings.HasPrefix(actor, "guests/") {
		_, name, _ = strings.Cut(actor, "/")
		if name != "" && name[0] < utf8.RuneSelf {
			name = strings.ToUpper(name[:1]) + name[1:]
		}
	}
	participant := o.Participant
	if participant == 0 {
		participant = 3
		if strings.HasPrefix(actor, "guests/") {
			participant = 4
		}
	}
	kind, objectName := "Create", "message"
	parameters := o.Parameters
	if o.File != nil {
		kind, objectName = "Activity", ""
		parameters = fmt.Sprintf(`{"actor":{"type":"user","id":%s,"name":%s},"file":{"type":"file","id":%s,"name":%s,"size":%s,"path":%s,"link":%s,"etag":"0","permissions":"27","mimetype":%s,"preview-available":"no","hide-download":"no"}}`,
			quote(strings.TrimPrefix(actor, "users/")), quote(name), quote(o.File.ID), quote(o.File.Name),
			quote(strconv.FormatInt(o.File.Size, 10)), quote(o.File.Name), quote(o.File.Link), quote(o.File.MIME))
		if text == "" {
			text = "{file}"
		}
	}
	if parameters == "" {
		parameters = "[]"
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.room(token)
	s.nextID++
	id := s.nextID
	in.messages[id] = note{actor: actor, name: name, text: text, at: s.conf.Now()}

	b := make([]byte, 0, 512+2*len(text))
	b = append(b, `{"type":"`+kind+`","actor":{"type":"Person","id":`...)
	b = appendQuoted(b, actor)
	b = append(b, `,"name":`...)
	b = appendQuoted(b, name)
	if kind == "Create" {
		b = append(b, `,"talkParticipantType":"`...)
		b = strconv.AppendInt(b, int64(participant), 10)
		b = append(b, '"')
	}
	b = append(b, `},"object":{"type":"Note","id":"`...)
	b = strconv.AppendInt(b, id, 10)
	b = append(b, `","name":"`+objectName+`","content":`...)
	b = appendContent(b, text, parameters)
	b = append(b, `,"mediaType":"text\/markdown"`...)
	if to, ok := in.messages[o.ReplyTo]; ok && o.ReplyTo != 0 {
		b = append(b, `,"inReplyTo":{"type":"Note","actor":{"type":"Person","id":`...)
		b = appendQuoted(b, to.actor)
		b = append(b, `,"name":`...)
		b = appendQuoted(b, to.name)
		b = append(b, `},"object":{"type":"Note","id":"`...)
		b = strconv.AppendInt(b, o.ReplyTo, 10)
		b = append(b, `","name":"message","content":`...)
		b = appendContent(b, to.text, "[]")
		b = append(b, `,"mediaType":"text\/markdown"}}`...)
	}
	if o.Thread != "" {
		b = append(b, `,"threadId":`...)
		b = appendQuoted(b, o.Thread)
	}
	b = append(b, '}')
	b = s.appendTarget(b, token, in)
	return id, append(b, '}')
}

func (s *Server) appendTarget(b []byte, token string, in *room) []byte {
	b = append(b, `,"target":{"type":"Collection","id":`...)
	b = appendQuoted(b, token)
	b = append(b, `,"name":`...)
	b = appendQuoted(b, in.name)
	return append(b, '}')
}

// System reports something in a room, such as "message_edited".
func (s *Server) System(ctx context.Context, token, actor, name, text string) (Delivery, error) {
	s.mu.Lock()
	in := s.room(token)
	s.nextID++
	id := s.nextID
	in.messages[id] = note{actor: actor, text: text, event: name, at: s.conf.Now()}
	b := fmt.Appendf(nil, `{"type":"Activity","actor":{"type":"Person","id":%s,"name":%s},"object":{"type":"Note","id":"%d","name":%s,"content":`,
		quote(actor), quote(actor), id, quote(name))
	b = appendContent(b, text, "[]")
	b = append(b, `,"mediaType":"text\/markdown"}`...)
	b = append(s.appendTarget(b, token, in), '}')
	s.mu.Unlock()
	d, err := s.Deliver(ctx, b)
	d.ID = id
	return d, err
}

// React puts somebody's emoji on a message. As before Talk 23, the webhook names
// the author of the message and not who it was.
func (s *Server) React(ctx context.Context, token string, message int64, emoji string) (Delivery, error) {
	s.mu.Lock()
	on := s.room(token).messages[message]
	body := s.likeBody(reactionKey{token, message, emoji}, on)
	s.mu.Unlock()
	return s.Deliver(ctx, body)
}

// Unreact takes somebody's emoji back.
func (s *Server) Unreact(ctx context.Context, token string, message int64, emoji string) (Delivery, error) {
	s.mu.Lock()
	in := s.room(token)
	on := in.messages[message]
	body := fmt.Appendf(nil, `{"type":"Undo","actor":{"type":"Person","id":%s,"name":%s},"object":`, quote(on.actor), quote(on.name))
	body = append(body, s.likeBody(reactionKey{token, message, emoji}, on)...)
	body = append(s.appendTarget(body, token, in), '}')
	s.mu.Unlock()
	return s.Deliver(ctx, body)
}

func (s *Server) likeBody(r reactionKey, on note) []byte {
	b := fmt.Appendf(nil, `{"type":"Like","actor":{"type":"Person","id":%s,"name":%s},"object":{"type":"Note","id":"%d","name":"","content":`,
		quote(on.actor), quote(on.name), r.Message)
	b = appendContent(b, on.text, "[]")
	b = append(b, `,"mediaType":"text\/markdown"}`...)
	b = s.appendTarget(b, r.Room, s.room(r.Room))
	return append(append(b, `,"content":`+quote(r.Emoji)...), '}')
}

// Sign returns the headers of a webhook with the body.
func (s *Server) Sign(body []byte) http.Header {
	s.mu.Lock()
	backend := s.live.backend
	s.mu.Unlock()
	if backend == "" {
		backend = "/" // overwrite.cli.url is not set
	}
	random := newRandom()
	return http.Header{
		"Content-Type":               {"application/json"},
		"X-Nextcloud-Talk-Random":    {random},
		"X-Nextcloud-Talk-Signature": {nextcloudtalk.SignRequest(s.conf.Secret, random, body)},
		"X-Nextcloud-Talk-Backend":   {backend},
		"Ocs-Apirequest":             {"true"},
		"User-Agent":                 {"Nextcloud Server Crawler"},
	}
}

// Deliver signs a body and sends it to the bot, once: the server never tries
// again.
func (s *Server) Deliver(ctx context.Context, body []byte) (Delivery, error) {
	return s.DeliverAs(ctx, s.Sign(body), body)
}

// DeliverAs sends headers and body as they are: the Header and Body of another
// delivery, or forged ones.
func (s *Server) DeliverAs(ctx context.Context, header http.Header, body []byte) (Delivery, error) {
	s.mu.Lock()
	to := s.live.botURL
	s.mu.Unlock()
	d := Delivery{Header: header, Body: body}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return d, fmt.Errorf("deliver webhook: %w", err)
	}
	req.Header = header.Clone()
	resp, err := s.client.Do(req)
	if err != nil {
		return d, fmt.Errorf("deliver webhook: %w", err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	resp.Body.Close()
	d.Status = resp.StatusCode
	return d, nil
}

// appendContent appends object.content: JSON in a JSON string.
func appendContent(b []byte, text, parameters string) []byte {
	inner := make([]byte, 0, 32+len(text)+len(parameters))
	inner = append(inner, `{"message":`...)
	inner = appendQuoted(inner, text)
	inner = append(inner, `,"parameters":`...)
	inner = append(inner, parameters...)
	inner = append(inner, '}')
	return appendQuoted(b, string(inner))
}

func quote(s string) string { return string(appendQuoted(nil, s)) }

// appendQuoted appends a JSON string as PHP writes it: with / and everything
// outside ASCII escaped.
func appendQuoted(b []byte, s string) []byte {
	const digits = "0123456789abcdef"
	unit := func(u uint16) {
		b = append(b, '\\', 'u', digits[u>>12], digits[u>>8&15], digits[u>>4&15], digits[u&15])
	}
	b = append(b, '"')
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if hi, lo := utf16.EncodeRune(r); hi != unicode.ReplacementChar {
				unit(uint16(hi))
				unit(uint16(lo))
			} else {
				unit(uint16(r))
			}
			i += n
			continue
		}
		switch c {
		case '"', '\\', '/':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		default:
			if c < ' ' {
				unit(uint16(c))
			} else {
				b = append(b, c)
			}
		}
		i++
	}
	return append(b, '"')
}

// mention is how the server finds mentions in a text. What comes before the @ is
// looked at in Mentions, as Go has no look-behind.
var mention = regexp.MustCompile(`(?i)^@("guest/[a-f0-9]+"|"(?:federated_)?(?:group|team|user)/[a-z0-9_\-@.' /:]+"|"[a-z0-9_\-@.' ]+"|[a-z0-9_\-@.']+)`)

// Mentions returns whom the server would notify because of a text.
func Mentions(text string) []string {
	var found []string
	for i := range len(text) {
		if text[i] != '@' || i > 0 && !strings.ContainsRune("-@.' \t\n\r\v\f", rune(text[i-1])) {
			continue
		}
		if m := mention.FindStringSubmatch(text[i:]); m != nil {
			found = append(found, strings.Trim(m[1], `"`))
		}
	}
	return found
}

// isEmoji reports whether s is one emoji.
func isEmoji(s string) bool {
	if s == "" || uniseg.GraphemeClusterCount(s) != 1 {
		return false
	}
	r, _ := utf8.DecodeRuneInString(s)
	return r > unicode.MaxLatin1 && !unicode.IsLetter(r) || strings.ContainsRune(s, '\u20e3') || r == '©' || r == '®'
}
