package nextcloudtalk

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"trill/adapters"
)

const (
	// randomLength is exact: nothing separates the random from the body in what
	// is signed, so another length would let bytes move from one to the other.
	randomLength = 64

	maxID    = 64  // bytes of a message or thread id
	maxToken = 64  // bytes of a room token; servers make 4 to 30
	maxActor = 320 // bytes of an actor id; a federated one is an address
	maxEmoji = 64  // bytes of a reaction
)

// Receive authenticates a webhook and reads what it says.
//
// The ID of a message, and of what the server itself reports, is
// "<room>/<object id>". Other events have no id of their own, so theirs ends
// with the start of the signature, which repeats only with the whole request.
// There is no Digest: what is signed begins with a random part of a fixed length, so
// a signature fits no other body and its event no other ID. ReplyTo is the id that the server knows
// a message by; of a reaction it is the message that carries it, and Text is the
// emoji, after a "-" when it was taken back.
func (a *Adapter) Receive(header http.Header, body []byte) ([]adapters.InboundMessage, error) {
	mac, err := a.authenticate(header, body)
	if err != nil {
		return nil, err
	}
	e, err := readEvent(body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", adapters.ErrMalformed, err)
	}
	m, err := a.message(&e, mac)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", adapters.ErrMalformed, err)
	}
	if m == nil {
		a.log.DebugContext(context.Background(), "webhook of an unknown type", "type", clean(e.kind, maxName))
		return nil, nil
	}
	m.Channel, m.Platform = a.name, Platform
	return []adapters.InboundMessage{*m}, nil
}

// authenticate returns the signature in lower case.
func (a *Adapter) authenticate(header http.Header, body []byte) (string, error) {
	random, ok := single(header, "X-Nextcloud-Talk-Random")
	if !ok || !isRandom(random) {
		return "", fmt.Errorf("%w: bad random header", adapters.ErrSignature)
	}
	signature, ok := single(header, "X-Nextcloud-Talk-Signature")
	if !ok || len(signature) != 2*sha256.Size {
		return "", fmt.Errorf("%w: bad signature header", adapters.ErrSignature)
	}
	var claimed [sha256.Size]byte
	if _, err := hex.Decode(claimed[:], []byte(signature)); err != nil {
		return "", fmt.Errorf("%w: bad signature header", adapters.ErrSignature)
	}
	sum := a.sign(random, body)
	if !hmac.Equal(claimed[:], sum[:]) {
		return "", adapters.ErrSignature
	}
	if err := a.checkBackend(header); err != nil {
		return "", err
	}
	return strings.ToLower(signature), nil
}

// checkBackend refuses a webhook of another server that happens to have the same
// secret. The header is not signed, so it decides nothing else: answers go to
// the configured address.
func (a *Adapter) checkBackend(header http.Header) error {
	if a.backend == "" {
		return nil
	}
	named, ok := single(header, "X-Nextcloud-Talk-Backend")
	if !ok {
		return fmt.Errorf("%w: no backend header, or several", adapters.ErrSignature)
	}
	if last := a.seen.Load(); last != nil && *last == named {
		return nil
	}
	if got := origin(named); got != a.backend {
		if named == "/" {
			return fmt.Errorf("%w: the server does not know its address: set overwrite.cli.url there, or any_backend here", adapters.ErrSignature)
		}
		return fmt.Errorf("%w: the server calls itself %q, not %q: if that is right, set backend to it", adapters.ErrSignature, clean(got, maxName), a.backend)
	}
	kept := strings.Clone(named)
	a.seen.Store(&kept)
	return nil
}

// single returns the value of a header that came exactly once.
func single(h http.Header, canonical string) (string, bool) {
	v := h[canonical]
	if len(v) != 1 {
		return "", false
	}
	return v[0], true
}

// isRandom reports whether s looks like the server's random: 64 characters of
// base64. The documentation shows a backslash where servers send a slash.
func isRandom(s string) bool {
	if len(s) != randomLength {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '+' && c != '/' && c != '\\' {
			return false
		}
	}
	return true
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// event is the body of a webhook.
type event struct {
	kind    string
	actor   actor
	object  object
	target  target
	content string // of a Like: the emoji
}

type actor struct{ id, name string }

// object is a note, a room, or the Like that an Undo takes back.
type object struct {
	id, name string
	content  []byte // of a note: JSON
	thread   string
	reply    quote
	liked    string // of a Like: the id of the note
}

type target struct{ id, name string }

// quote is a note that was replied to. Its fields are empty when there is none.
type quote struct {
	actor   actor
	id      string
	content []byte
}

// readEvent reads a body in the same pass that makes sure that nobody could read
// it differently. Names are exact, as the server writes them.
func readEvent(body []byte) (event, error) {
	var e event
	r := adapters.NewJSONReader(body)
	r.Object(func(name []byte) {
		switch string(name) {
		case "type":
			e.kind = r.String()
		case "actor":
			r.Object(func(name []byte) {
				switch string(name) {
				case "id":
					e.actor.id = r.String()
				case "name":
					e.actor.name = loose(r)
				}
			})
		case "object":
			e.object.read(r)
		case "target":
			r.Object(func(name []byte) {
				switch string(name) {
				case "id":
					e.target.id = loose(r)
				case "name":
					e.target.name = loose(r)
				}
			})
		case "content":
			e.content = loose(r)
		}
	})
	return e, r.End()
}

func (o *object) read(r *adapters.JSONReader) {
	r.Object(func(name []byte) {
		switch string(name) {
		case "id":
			o.id = loose(r)
		case "name":
			o.name = loose(r)
		case "content":
			o.content = looseBytes(r)
		case "threadId":
			o.thread = loose(r)
		case "inReplyTo":
			o.reply.read(r)
		case "object":
			looseObject(r, func(name []byte) {
				if string(name) == "id" {
					o.liked = loose(r)
				}
			})
		}
	})
}

// read reads a quote. One that cannot be read is none: the message counts.
func (q *quote) read(r *adapters.JSONReader) {
	looseObject(r, func(name []byte) {
		switch string(name) {
		case "actor":
			looseObject(r, func(name []byte) {
				switch string(name) {
				case "id":
					q.actor.id = loose(r)
				case "name":
					q.actor.name = loose(r)
				}
			})
		case "object":
			looseObject(r, func(name []byte) {
				switch string(name) {
				case "id":
					q.id = loose(r)
				case "content":
					q.content = looseBytes(r)
				}
			})
		}
	})
}

// loose reads text that some versions send as a number. What is neither is empty,
// not an error: a message must not be lost for a field that changed.
func loose(r *adapters.JSONReader) string {
	switch r.Kind() {
	case '"':
		return r.String()
	case '0':
		return string(r.Raw())
	}
	return "" // the reader passes over it
}

// looseBytes reads what is JSON in a string. What is no string is empty.
func looseBytes(r *adapters.JSONReader) []byte {
	if r.Kind() != '"' {
		return nil
	}
	return r.Bytes()
}

// looseObject reads an object. What is none has no members.
func looseObject(r *adapters.JSONReader, field func(name []byte)) {
	if r.Kind() == '{' {
		r.Object(field)
	}
}

// message returns what the event means, nil for a type we do not know.
func (a *Adapter) message(e *event, mac string) (*adapters.InboundMessage, error) {
	switch e.kind {
	case "Join", "Leave":
		return a.membership(e, mac)
	case "Create", "Activity":
		return a.posted(e)
	case "Like", "Undo":
		return a.reaction(e, mac)
	}
	return nil, nil
}

// membership reads that the bot was added to a room or removed.
func (a *Adapter) membership(e *event, mac string) (*adapters.InboundMessage, error) {
	if !isToken(e.object.id) {
		return nil, fmt.Errorf("no room")
	}
	m := &adapters.InboundMessage{Room: adapters.RoomID(e.object.id)}
	m.RoomName, m.Direct = roomName(e.object.name, "")
	if e.kind == "Join" {
		m.Kind = adapters.KindJoined
	} else {
		m.Kind = adapters.KindLeft
	}
	m.ID = unnumbered(m.Room, m.Kind, mac)
	sender, err := a.person(e.actor)
	if err != nil {
		return nil, err
	}
	// The server sends this only to the bot it is about, signed with that bot's
	// secret: the actor is us, whatever the configuration says.
	if sender.Bot && !sender.Self {
		if a.self.Load() != nil {
			a.log.WarnContext(context.Background(), "webhook_url is not the address the bot was installed with", "bot", sender.ID)
		}
		sender.Self = true
	}
	if id := string(sender.ID); sender.Bot {
		a.self.Store(&id)
	}
	m.Sender = sender
	return m, nil
}

// posted reads a message or what the server reports in the room.
func (a *Adapter) posted(e *event) (*adapters.InboundMessage, error) {
	room, id := e.target.id, e.object.id
	switch {
	case !isToken(room):
		return nil, fmt.Errorf("no room")
	case !isID(id):
		return nil, fmt.Errorf("no message id")
	}
	sender, err := a.person(e.actor)
	if err != nil {
		return nil, err
	}
	c, err := readContent(e.object.content)
	if err != nil {
		return nil, err
	}
	m := &adapters.InboundMessage{
		ID:          adapters.MessageID(room + "/" + id),
		Kind:        adapters.KindText,
		Room:        adapters.RoomID(room),
		Sender:      sender,
		Text:        c.text(),
		Attachments: c.attachments(),
	}
	m.RoomName, m.Direct = roomName(e.target.name, e.actor.id)
	if t := e.object.thread; isID(t) && t != "0" {
		m.Thread = adapters.ThreadID(t)
	}
	if e.kind == "Activity" {
		// Up to Talk 22 a shared file is an activity without a name; all other
		// activities are the server's words.
		switch name := e.object.name; {
		case name == "message_edited":
			m.Kind = adapters.KindEdit
		case name == "message", name == "" && c.shares():
		default:
			m.Kind = adapters.KindSystem
		}
	}
	if m.Kind != adapters.KindText {
		return m, nil // its id is of the report, which nobody can reply to
	}
	m.ReplyTo = adapters.MessageID(id)
	m.Quote = a.quote(m.Room, e.object.reply)
	m.Mentioned = m.Quote != nil && m.Quote.Sender.Self
	return m, nil
}

// reaction reads an emoji that was put or taken back. Who did it is left open:
// before Talk 23 the server names the author of the message instead.
func (a *Adapter) reaction(e *event, mac string) (*adapters.InboundMessage, error) {
	on, emoji := e.object.id, e.content
	if e.kind == "Undo" {
		on, emoji = e.object.liked, "-"+string(e.object.content)
	}
	room := e.target.id
	switch {
	case !isToken(room):
		return nil, fmt.Errorf("no room")
	case !isID(on):
		return nil, fmt.Errorf("no message id")
	case len(emoji) > maxEmoji:
		return nil, fmt.Errorf("no emoji")
	}
	m := &adapters.InboundMessage{
		Kind:    adapters.KindReaction,
		Room:    adapters.RoomID(room),
		ReplyTo: adapters.MessageID(on),
		Text:    cleanText(emoji),
	}
	m.ID = unnumbered(m.Room, m.Kind, mac)
	m.RoomName, m.Direct = roomName(e.target.name, "")
	return m, nil
}

// unnumbered is the id of an event that the server gives none.
func unnumbered(room adapters.RoomID, kind adapters.Kind, mac string) adapters.MessageID {
	return adapters.MessageID(string(room) + "/" + string(kind) + "/" + mac[:32])
}

// person returns who the actor is. A guest has no name until it chooses one.
func (a *Adapter) person(who actor) (adapters.Person, error) {
	kind, id, ok := strings.Cut(who.id, "/")
	if !ok || kind == "" || id == "" || len(who.id) > maxActor || clean(who.id, maxActor) != who.id {
		return adapters.Person{}, fmt.Errorf("no actor")
	}
	p := adapters.Person{
		ID:   adapters.PersonID(who.id),
		Name: clean(who.name, maxName),
		Bot:  isBot(who.id),
	}
	if self := a.self.Load(); self != nil {
		p.Self = p.Bot && who.id == *self
	} else {
		// Only bots are looked at, and an administrator named those. A wrong
		// guess makes us listen, it gives nobody a right.
		p.Self = p.Bot && strings.TrimSuffix(p.Name, " (Bot)") == a.conf.BotName
	}
	return p, nil
}

// quote returns the message that was replied to, nil when there is none that can
// be read.
func (a *Adapter) quote(room adapters.RoomID, q quote) *adapters.Quote {
	if !isID(q.id) {
		return nil
	}
	sender, err := a.person(q.actor)
	if err != nil {
		return nil
	}
	result := &adapters.Quote{ID: adapters.MessageID(string(room) + "/" + q.id), Sender: sender}
	if c, err := readContent(q.content); err == nil {
		result.Text = c.text()
	}
	return result
}

func isBot(actor string) bool { return strings.HasPrefix(actor, "bots/") }

// isToken reports whether s can be a room; it becomes part of an address.
func isToken(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) {
			return false
		}
	}
	return true
}

// isID reports whether s can be the id of a message. They are numbers so far.
func isID(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && s[i] != '-' && s[i] != '_' {
			return false
		}
	}
	return true
}

// roomName returns what to call a room, and whether it is a conversation of two.
// Such a room is called by the JSON text of their ids, ["alice","bob"]. Any
// moderator may call a group like that, so one of the two has to be the actor,
// where there is one.
func roomName(name, actor string) (display string, direct bool) {
	var two []string
	if !strings.HasPrefix(name, `["`) || json.Unmarshal([]byte(name), &two) != nil || len(two) != 2 {
		return clean(name, maxName), false
	}
	user, isUser := strings.CutPrefix(actor, "users/")
	direct = actor == "" || isUser && (user == two[0] || user == two[1])
	return clean(two[0], maxName) + ", " + clean(two[1], maxName), direct
}
