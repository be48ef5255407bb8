// Package adapters is the boundary between chat platforms and the bot.
//
// A platform lives in its own sub-package and implements [ChannelAdapter].
// What it can do beyond sending, it says by implementing a role as well:
// [WebhookReceiver] when the platform calls us, [Listener] when we call it,
// [Reactor], [Finder] and [Checker] for what only some can do. Platform JSON
// never leaves the sub-package: what comes in is an [InboundMessage], what goes
// out is an [OutboundMessage].
//
// Whether a message is for the bot, who may ask, and what is answered is not
// decided here; that is package pipeline.
package adapters

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Platform names a kind of chat service: "nextcloud-talk". It is the same word
// in the configuration, the webhook path and the logs.
type Platform string

// Channel is one configured account of a platform, named by its key in the
// configuration.
type Channel string

// RoomID is a platform's own id for a place where people talk.
type RoomID string

// ThreadID is a platform's own id for a conversation inside a room; empty where
// the room is the conversation.
type ThreadID string

// MessageID is a platform's own id for a message. Only the adapter that made
// it looks inside.
type MessageID string

// PersonID is a platform's own, immutable id for who sent a message, such as
// "users/alice". It is never a display name.
type PersonID string

// ThreadKey is where a conversation happens. One thread has one session.
type ThreadKey struct {
	Channel Channel
	Room    RoomID
	Thread  ThreadID
}

// Kind says what happened in a room.
type Kind string

// The kinds of an [InboundMessage]. Only [KindText] can start work.
const (
	KindText     Kind = "text"     // a person wrote something, or shared a file
	KindEdit     Kind = "edit"     // a message was changed
	KindReaction Kind = "reaction" // somebody put or took back an emoji
	KindSystem   Kind = "system"   // the platform reports: renamed, call started, ...
	KindJoined   Kind = "joined"   // the bot was added to the room
	KindLeft     Kind = "left"     // the bot was removed from the room
)

// Person is who did something, as the platform vouches for it.
type Person struct {
	ID   PersonID
	Name string // for display only; controlled by that person
	Bot  bool   // some bot, ours or another
	Self bool   // this very bot
}

// Quote is the message that another one replies to.
type Quote struct {
	ID     MessageID // as its own InboundMessage had it, or would have had it
	Sender Person
	Text   string
}

// Attachment is a file that came with a message. The text of the message names
// it; its content is not fetched here.
type Attachment struct {
	ID   string
	Name string
	MIME string
	Size int64  // bytes; 0 when not said
	Link string // as the platform gave it; may need credentials
}

// InboundMessage is one thing that happened in a room, authenticated, bounded
// and read by its adapter.
type InboundMessage struct {
	Channel  Channel
	Platform Platform
	// ID is unique in its channel and the same on every redelivery.
	ID MessageID
	// ReplyTo is what an answer to this message refers to: the id the platform
	// knows the message by. Empty when it cannot be replied to.
	ReplyTo MessageID
	// Digest identifies the delivery itself, for platforms whose signature
	// could be replayed with another id. Empty when there is none.
	Digest string

	Kind     Kind
	Room     RoomID
	RoomName string // for display only
	Direct   bool   // a conversation with one person
	Thread   ThreadID
	Sender   Person

	// Text is readable: entities are names, placeholders are resolved.
	Text string
	// Mentioned is set when the platform itself says that the bot is meant.
	Mentioned   bool
	Quote       *Quote
	Attachments []Attachment
	SentAt      time.Time // zero when the platform does not say
}

// Key returns the thread the message belongs to.
func (m *InboundMessage) Key() ThreadKey {
	return ThreadKey{Channel: m.Channel, Room: m.Room, Thread: m.Thread}
}

// OutboundMessage is one message to post: a part of an answer that fits the
// platform, as [ChannelAdapter.Split] made it.
type OutboundMessage struct {
	Room    RoomID
	Thread  ThreadID
	ReplyTo MessageID // empty: a plain message
	Text    string    // Markdown
	// Key is the same on every try to send this message and differs between
	// messages: 64 lower-case hex digits.
	Key string
	// Silent asks the platform not to notify anybody.
	Silent bool
}

// Reaction is one emoji on one message.
type Reaction struct {
	Room    RoomID
	Message MessageID
	Emoji   string
}

// ChannelAdapter is one channel of a platform. Its methods may be called from
// several goroutines at once; none of them retries, waits out a limit, or logs a
// fault that it returns.
type ChannelAdapter interface {
	// Platform is the same for every channel of its kind.
	Platform() Platform

	// Split cuts an answer into parts that each fit one message. Nothing of the
	// text is lost, every part stands for itself (code fences are closed and
	// opened again), and no part notifies anybody the text mentions.
	Split(text string) []string

	// Send posts one message and returns the platform's id for it, empty where
	// the platform does not tell. An error is a *SendError.
	Send(ctx context.Context, m OutboundMessage) (MessageID, error)

	// About tells the model where it is: the platform, its markup and manners,
	// in a few sentences.
	About() string
}

// WebhookReceiver is the role of a platform that calls us.
type WebhookReceiver interface {
	ChannelAdapter

	// Receive authenticates one request and reads what it says; none is a
	// request that is to be acknowledged and forgotten. The body is exactly the
	// bytes that came, already bounded. An error is [ErrSignature],
	// [ErrMalformed], or wraps one of them.
	Receive(header http.Header, body []byte) ([]InboundMessage, error)
}

// Listener is the role of a platform that has to be asked: an IMAP poll, a Slack
// socket, a Discord gateway.
type Listener interface {
	ChannelAdapter

	// Listen hands every new message to in, until ctx is done.
	Listen(ctx context.Context, in Inbox) error
}

// Inbox takes what adapters receive. When Accept returns nil the messages are
// durable, or were there before; otherwise none of this call may be
// acknowledged to the platform.
type Inbox interface {
	Accept(ctx context.Context, ms ...InboundMessage) error
}

// Reactor is the role of a platform whose messages can carry an emoji.
type Reactor interface {
	// React puts the emoji there; doing it twice is the same as once. An error
	// is a *SendError.
	React(ctx context.Context, r Reaction) error
}

// Finder is the role of a platform that can tell whether a message was posted,
// which settles a send whose outcome nobody saw.
type Finder interface {
	// Find looks for the message with m.Key, which was sent at since or later.
	// found is false only when it is certainly not there. [ErrCannotLook] means
	// that this channel is not set up for looking.
	Find(ctx context.Context, m OutboundMessage, since time.Time) (id MessageID, found bool, err error)
}

// Finding is one result of a check, for `bot doctor` and /readyz.
type Finding struct {
	OK     bool   `json:"ok"`
	What   string `json:"what"`             // what was looked at
	Detail string `json:"detail,omitempty"` // what was found
	Advice string `json:"advice,omitempty"` // what to do about it
}

// Checker is the role of a platform whose set-up can be tested over the network.
type Checker interface {
	Check(ctx context.Context) []Finding
}

var (
	// ErrSignature means that the request is not from the platform: 401.
	ErrSignature = errors.New("signature does not match")
	// ErrMalformed means that the platform would not send this: 400.
	ErrMalformed = errors.New("malformed request")
	// ErrCannotLook means that a [Finder] has no way to look.
	ErrCannotLook = errors.New("the channel cannot look for its own messages")
)

// Scope is how far a refusal reaches.
type Scope string

// The scopes of a [SendError].
const (
	ScopeMessage Scope = ""        // this message only
	ScopeRoom    Scope = "room"    // nothing can be sent to this room
	ScopeChannel Scope = "channel" // nothing can be sent anywhere for now
)

// SendError is why a message was not sent, and what follows from it.
type SendError struct {
	// Retry says that the same message may be sent again, not before After.
	Retry bool
	After time.Duration
	// Ambiguous says that nobody knows whether the message was posted.
	Ambiguous bool
	// Resplit says that the message was too long.
	Resplit bool
	Scope   Scope
	Status  int // of HTTP, 0 when there was no answer
	Err     error
}

func (e *SendError) Error() string { return e.Err.Error() }

func (e *SendError) Unwrap() error { return e.Err }
