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
// Digest is the signature, in lower case. ReplyTo is the id that the server knows
// a message by; of a reaction it is the message that carries it, and Text is the
// emoji, after a "-" when it was taken back.
func (a *Adapter) Receive(header http.Header, body []byte) ([]adapters.InboundMessage, error) {
	digest, err := a.authenticate(header, body)
	if err != nil {
		return nil, err
	}
	if err := adapters.CheckJSON(body); err != nil {
		return nil, fmt.Errorf("%w: %w", adapters.ErrMalformed, err)
	}
	var e event
	if err := json.Unmarshal(body, &e); err != nil {
		return nil, fmt.Errorf("%w: %w", adapters.ErrMalformed, err)
	}
	m, err := a.message(&e, digest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", adapters.ErrMalformed, err)
	}
	if m == nil {
		a.log.DebugContext(context.Background(), "webhook of an unknown type", "type", clean(e.Type, maxName))
		return nil, nil
	}
	m.Channel, m.Platform, m.Digest = a.name, Platform, digest
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
	var claimed, sum [sha256.Size]byte
	if _, err := hex.Decode(claimed[:], []byte(signature)); err != nil {
		return "", fmt.Errorf("%w: bad signature header", adapters.ErrSignature)
	}
	a.sign(&sum, random, body)
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
	named = strings.Clone(named)
	a.seen.Store(&named)
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
	Type    string `json:"type"`
	Actor   actor  `json:"actor"`
	Object  object `json:"object"`
	Target  target `json:"target"`
	Content loose  `json:"content"` // of a Like: the emoji
}

type actor struct {
	ID   string `json:"id"`
	Name loose  `json:"name"`
}

// object is a note, a room, or the Like that an Undo takes back.
type object struct {
	Type      string          `json:"type"`
	ID        loose           `json:"id"`
	Name      loose           `json:"name"`
	Content   loose           `json:"content"`
	ThreadID  loose           `json:"threadId"`
	InReplyTo json.RawMessage `json:"inReplyTo"` // a quote
	Object    json.RawMessage `json:"object"`    // of a Like: a note
}

type target struct {
	ID   loose `json:"id"`
	Name loose `json:"name"`
}

type quote struct {
	Actor  actor `json:"actor"`
	Object note  `json:"object"`
}

type note struct {
	ID      loose `json:"id"`
	Content loose `json:"content"`
}

// loose is text that some versions send as a number. What is neither is empty,
// not an error: a message must not be lost for a field that changed.
type loose string

func (l *loose) UnmarshalJSON(b []byte) error {
	switch c := b[0]; {
	case c == '"':
		return json.Unmarshal(b, (*string)(l))
	case c == '-' || '0' <= c && c <= '9':
		*l = loose(b)
	}
	return nil
}

// message returns what the event means, nil for a type we do not know.
func (a *Adapter) message(e *event, digest string) (*adapters.InboundMessage, error) {
	switch e.Type {
	case "Join", "Leave":
		return a.membership(e, digest)
	case "Create", "Activity":
		return a.posted(e)
	case "Like", "Undo":
		return a.reaction(e, digest)
	}
	return nil, nil
}

// membership reads that the bot was added to a room or removed.
func (a *Adapter) membership(e *event, digest string) (*adapters.InboundMessage, error) {
	if !isToken(string(e.Object.ID)) {
		return nil, fmt.Errorf("no room")
	}
	m := &adapters.InboundMessage{Room: adapters.RoomID(e.Object.ID)}
	m.RoomName, m.Direct = roomName(string(e.Object.Name), "")
	if e.Type == "Join" {
		m.Kind = adapters.KindJoined
	} else {
		m.Kind = adapters.KindLeft
	}
	m.ID = unnumbered(m.Room, m.Kind, digest)
	sender, err := a.person(e.Actor)
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
	room, id := string(e.Target.ID), string(e.Object.ID)
	switch {
	case !isToken(room):
		return nil, fmt.Errorf("no room")
	case !isID(id):
		return nil, fmt.Errorf("no message id")
	}
	sender, err := a.person(e.Actor)
	if err != nil {
		return nil, err
	}
	c, err := readContent(string(e.Object.Content))
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
	m.RoomName, m.Direct = roomName(string(e.Target.Name), e.Actor.ID)
	if t := string(e.Object.ThreadID); isID(t) && t != "0" {
		m.Thread = adapters.ThreadID(t)
	}
	if e.Type == "Activity" {
		// Up to Talk 22 a shared file is an activity without a name; all other
		// activities are the server's words.
		switch name := string(e.Object.Name); {
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
	m.Quote = a.quote(e.Object.InReplyTo)
	m.Mentioned = m.Quote != nil && m.Quote.Sender.Self
	return m, nil
}

// reaction reads an emoji that was put or taken back. Who did it is left open:
// before Talk 23 the server names the author of the message instead.
func (a *Adapter) reaction(e *event, digest string) (*adapters.InboundMessage, error) {
	on, emoji := string(e.Object.ID), string(e.Content)
	if e.Type == "Undo" {
		var n note
		if len(e.Object.Object) > 0 {
			_ = json.Unmarshal(e.Object.Object, &n) // a note or nothing we can use
		}
		on, emoji = string(n.ID), "-"+string(e.Object.Content)
	}
	room := string(e.Target.ID)
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
	m.ID = unnumbered(m.Room, m.Kind, digest)
	m.RoomName, m.Direct = roomName(string(e.Target.Name), "")
	return m, nil
}

// unnumbered is the id of an event that the server gives none.
func unnumbered(room adapters.RoomID, kind adapters.Kind, digest string) adapters.MessageID {
	return adapters.MessageID(string(room) + "/" + string(kind) + "/" + digest[:32])
}

// person returns who the actor is. A guest has no name until it chooses one.
func (a *Adapter) person(who actor) (adapters.Person, error) {
	kind, id, ok := strings.Cut(who.ID, "/")
	if !ok || kind == "" || id == "" || len(who.ID) > maxActor || clean(who.ID, maxActor) != who.ID {
		return adapters.Person{}, fmt.Errorf("no actor")
	}
	p := adapters.Person{
		ID:   adapters.PersonID(who.ID),
		Name: clean(string(who.Name), maxName),
		Bot:  isBot(who.ID),
	}
	if self := a.self.Load(); self != nil {
		p.Self = p.Bot && who.ID == *self
	} else {
		// Only bots are looked at, and an administrator named those. A wrong
		// guess makes us listen, it gives nobody a right.
		p.Self = p.Bot && strings.TrimSuffix(p.Name, " (Bot)") == a.conf.BotName
	}
	return p, nil
}

// quote returns the message that was replied to, nil when there is none that can
// be read.
func (a *Adapter) quote(raw json.RawMessage) *adapters.Quote {
	if len(raw) == 0 || raw[0] != '{' {
		return nil
	}
	var q quote
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil
	}
	sender, err := a.person(q.Actor)
	if err != nil || !isID(string(q.Object.ID)) {
		return nil
	}
	result := &adapters.Quote{ID: adapters.MessageID(q.Object.ID), Sender: sender}
	if c, err := readContent(string(q.Object.Content)); err == nil {
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
