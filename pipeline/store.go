package pipeline

import (
	"context"
	"errors"
	"time"

	"trill/adapters"
	"trill/engine/session"
)

// InboxID numbers inbox rows in the order they were stored.
type InboxID int64

// InboxState is where a received message stands.
type InboxState string

// The states of an inbox row. Received and Waiting are open; a row leaves them
// once.
const (
	Received InboxState = "received" // stored, not yet looked at
	Waiting  InboxState = "waiting"  // work that waits for the run before it
	Done     InboxState = "done"     // in a transcript, or a command that was answered
	Ignored  InboxState = "ignored"  // deliberately not answered; Reason says why
	Dead     InboxState = "dead"     // given up after several tries; Reason says why
)

// InboxRow is a received message and what became of it.
type InboxRow struct {
	ID         InboxID
	Message    adapters.InboundMessage // without text once the row is ignored
	State      InboxState
	Reason     string
	Run        session.RunID // the run whose transcript holds it
	ReceivedAt time.Time
}

// Target is where the answers of a run go.
type Target struct {
	Key     adapters.ThreadKey
	ReplyTo adapters.MessageID
}

// Run is one request until its answer.
type Run struct {
	ID      session.RunID
	Session session.ID
	Inbox   InboxID // the message that started it
	Target  Target
	// Person and Role are who asked, and the access that person had.
	Person string
	Role   Role
	// Project is the key of the project the session works on, or empty.
	Project string
	// Stop is why the run has to end, once somebody asked for that.
	Stop string
	// Attempts counts the processes that have worked on it.
	Attempts  int
	StartedAt time.Time
	EndedAt   time.Time // zero while it is open
	Reason    session.EndReason
}

// DeliveryID numbers deliveries; parts of a text that was split once more have
// higher numbers than what is sent after them.
type DeliveryID int64

// DeliveryState is where an outgoing message stands.
type DeliveryState string

// The states of a delivery. A delivery leaves Sending only by evidence.
const (
	Pending   DeliveryState = "pending"   // to be sent at NextAt
	Sending   DeliveryState = "sending"   // a request may be on the wire
	Ambiguous DeliveryState = "ambiguous" // a request was on the wire, its outcome is unknown
	Sent      DeliveryState = "sent"
	Held      DeliveryState = "held"     // an operator decides
	Rejected  DeliveryState = "rejected" // the platform refuses it for good
	Dropped   DeliveryState = "dropped"  // overtaken: no longer worth sending
)

// DeliveryKind says what a delivery is for.
type DeliveryKind string

// The kinds of deliveries. Acks and status messages are dropped when the answer
// is ready before they were sent, and keep nobody waiting; all others are sent
// in order within their room.
const (
	KindAnswer   DeliveryKind = "answer"   // the answer of a run
	KindReply    DeliveryKind = "reply"    // the answer to a command, or a refusal
	KindApproval DeliveryKind = "approval" // asks people about a call
	KindStatus   DeliveryKind = "status"   // says that a long run is at work
	KindAck      DeliveryKind = "ack"      // a reaction on the message; Text is the emoji
)

// Ordered reports whether deliveries of the kind wait for earlier ones.
func (k DeliveryKind) Ordered() bool { return k != KindStatus && k != KindAck }

// Delivery is one outgoing message with its retries.
type Delivery struct {
	ID     DeliveryID
	Kind   DeliveryKind
	Run    session.RunID // empty for replies that no run made
	Inbox  InboxID       // the message it answers
	Part   int           // 1, 2, ... of one text
	Target Target
	Text   string
	// Key is unique and the same on every try; see adapters.OutboundMessage.
	Key       string
	State     DeliveryState
	Attempts  int
	NextAt    time.Time
	Error     string             // of the last try
	RemoteID  adapters.MessageID // as the platform told it
	CreatedAt time.Time
	SentAt    time.Time
}

// ApprovalState is where a question stands.
type ApprovalState string

// The states of an approval. Only an open one can be decided.
const (
	ApprovalOpen    ApprovalState = "open"
	ApprovalAllowed ApprovalState = "allowed"
	ApprovalDenied  ApprovalState = "denied"
	ApprovalExpired ApprovalState = "expired"
)

// Approval is a question to the people of a thread: may this call run?
type Approval struct {
	ID        int64
	Code      string // what people type; unique among open approvals
	Run       session.RunID
	CallID    string
	Digest    string // SHA-256 of tool and canonical arguments: what is approved
	Key       adapters.ThreadKey
	Tool      string
	Shown     string // what the people were shown
	Requester string // channel:platform-id of who asked for the run
	State     ApprovalState
	By        string // who decided
	Note      string // what that person said
	CreatedAt time.Time
	ExpiresAt time.Time
	DecidedAt time.Time
}

// Block keeps deliveries from being sent to a room, or to a whole channel when
// Room is empty.
type Block struct {
	Channel adapters.Channel
	Room    adapters.RoomID
	Reason  string
	Since   time.Time
	Until   time.Time // zero: until somebody lifts it
}

// AuditEntry records something a security owner wants to find again.
type AuditEntry struct {
	ID     int64            `json:"id"`
	At     time.Time        `json:"at"`
	Class  string           `json:"class"` // access_denied, bad_signature, approval_allowed, ...
	Key    adapters.Channel `json:"channel,omitempty"`
	Room   adapters.RoomID  `json:"room,omitempty"`
	Person string           `json:"person,omitempty"`
	Detail string           `json:"detail,omitempty"`
}

// Thread is a thread's pointer to its session.
type Thread struct {
	Key     adapters.ThreadKey
	Session session.ID
	Project string
}

// StartRun makes a message into a run.
type StartRun struct {
	Row InboxRow // its ID must be open
	// Run is the row to create, with Session empty: the store resolves the
	// thread to its session, or creates one with NewSession's id.
	Run        Run
	NewSession session.ID
	User       session.User
	At         time.Time
}

// Steer adds waiting messages to a run that is under way.
type Steer struct {
	Run  Run
	Next int64 // the Seq of the first event to append
	At   time.Time
	// Event reads a waiting row; Person filters by who asked.
	Person func(InboxRow) string
	Event  func(InboxRow) session.User
}

// FinishRun ends a run.
type FinishRun struct {
	Run        session.RunID
	Reason     session.EndReason
	Events     []session.Event // the last ones, ending with an End
	Deliveries []Delivery      // the answer
	At         time.Time
	// Stopped says that the caller knows of the run's Stop.
	Stopped bool
}

// Settle ends an inbox row that starts no run.
type Settle struct {
	Row        InboxID
	State      InboxState // Done, Ignored or Dead
	Reason     string
	Deliveries []Delivery
	Audit      *AuditEntry
	At         time.Time

	// What a command changes, each only if set.
	Thread  *Thread            // where the thread points from now on
	Stop    string             // why the open run of StopKey has to end
	StopKey adapters.ThreadKey //
	Decide  *Decide
}

// Decide answers an approval that must still be open.
type Decide struct {
	ID    int64
	State ApprovalState
	By    string
	Note  string
}

// SessionInfo is a session as lists show it.
type SessionInfo struct {
	ID        session.ID         `json:"id"`
	Key       adapters.ThreadKey `json:"thread"`
	Title     string             `json:"title"` // the beginning of the first message
	Project   string             `json:"project,omitempty"`
	Events    int64              `json:"events"`
	Running   bool               `json:"running"`
	CreatedAt time.Time          `json:"created_at"`
	UpdatedAt time.Time          `json:"updated_at"`
	Usage     Usage              `json:"usage"`
}

// Usage sums up model calls.
type Usage struct {
	Calls       int64 `json:"calls"`
	Input       int64 `json:"input_tokens"`
	CachedInput int64 `json:"cached_input_tokens"`
	Output      int64 `json:"output_tokens"`
	LastInput   int64 `json:"last_input_tokens"` // how full the window was
}

// Depth is how much is open, for metrics and /readyz.
type Depth struct {
	Inbox       int64
	InboxOldest time.Time // zero when Inbox is 0
	Outbox      map[DeliveryState]int64
	Runs        int64
	Approvals   int64
}

var (
	// ErrGone means that the row is no longer in the state the call needs:
	// somebody else was first.
	ErrGone = errors.New("already settled")
	// ErrStopRequested means that the run was asked to stop before it ended.
	ErrStopRequested = errors.New("run was asked to stop")
	// ErrNotFound means that there is no such row.
	ErrNotFound = errors.New("not found")
)

// Store keeps everything the pipeline must not lose. Each method is one
// transaction: when it returns nil the change is durable, when it returns an
// error nothing changed, except that after ctx ended during the call nobody
// knows. Its methods may be called from several goroutines.
type Store interface {
	// Accept stores messages, all or none. The result has, for each row, its
	// new id, or 0 where the channel already had the message's ID or Digest.
	Accept(ctx context.Context, rows []InboxRow) ([]InboxID, error)
	// Open returns the thread's open rows in order.
	Open(ctx context.Context, key adapters.ThreadKey) ([]InboxRow, error)
	// OpenThreads returns every thread with an open row or an open run.
	OpenThreads(ctx context.Context) ([]adapters.ThreadKey, error)
	// Wait marks a received row as work that waits.
	Wait(ctx context.Context, id InboxID) error
	// Settle ends a row; [ErrGone] when it was not open, or the approval to
	// decide was not.
	Settle(ctx context.Context, s Settle) error

	// StartRun appends the user event, closes the inbox row and creates the
	// run. [ErrGone] when the row was not open or the thread has an open run.
	StartRun(ctx context.Context, s StartRun) (Run, error)
	// Steer appends the waiting rows of the run's thread that are from the
	// run's person as user events and closes them. It returns the events.
	Steer(ctx context.Context, s Steer) ([]session.Event, error)
	// FinishRun appends the last events, ends the run and stores its
	// deliveries; acks and status messages of the run that are still pending
	// are dropped. [ErrStopRequested], and nothing changes, when the run has a
	// Stop that the caller does not know of; [ErrGone] when it is not open.
	FinishRun(ctx context.Context, f FinishRun) error
	// OpenRun returns the open run of a thread, with Attempts counted up by
	// one; ErrNotFound when there is none. It is for taking over after a crash.
	OpenRun(ctx context.Context, key adapters.ThreadKey) (Run, error)
	// Run returns a run.
	Run(ctx context.Context, id session.RunID) (Run, error)

	// Thread returns where a thread points; ErrNotFound for a new one.
	Thread(ctx context.Context, key adapters.ThreadKey) (Thread, error)
	// ThreadOf returns the thread of the room that a quoted message is in: one
	// that came in, by its ID, or one of the newest that were sent there, by its
	// text, as platforms may not tell the id. ErrNotFound when it is neither.
	ThreadOf(ctx context.Context, ch adapters.Channel, room adapters.RoomID, q adapters.Quote) (adapters.ThreadID, error)
	// Sessions returns sessions, newest activity first, at most limit, skipping
	// the first offset; of one room when room is not nil.
	Sessions(ctx context.Context, room *adapters.ThreadKey, limit, offset int) ([]SessionInfo, error)
	// Session returns one; session.ErrNotFound when there is none.
	Session(ctx context.Context, id session.ID) (SessionInfo, error)

	// AskApproval stores a question and its deliveries, unless the run already
	// asked about the call; it returns the row that is there now.
	AskApproval(ctx context.Context, a Approval, ds []Delivery) (Approval, error)
	// Approval returns the newest approval with the code in the channel and
	// room.
	Approval(ctx context.Context, key adapters.ThreadKey, code string) (Approval, error)
	// OpenApprovals returns the open ones of a room, oldest first.
	OpenApprovals(ctx context.Context, key adapters.ThreadKey) ([]Approval, error)
	// DecideApproval decides outside of a command: expiry, a console.
	DecideApproval(ctx context.Context, d Decide, at time.Time) error

	// Enqueue stores deliveries; one whose Key is there already is left alone.
	Enqueue(ctx context.Context, ds []Delivery) error
	// NextDelivery returns the delivery of the room to look at next: the first
	// ordered one that is not final, or an unordered one, whichever is due
	// first. ErrNotFound when the room has none.
	NextDelivery(ctx context.Context, ch adapters.Channel, room adapters.RoomID) (Delivery, error)
	// UpdateDelivery moves a delivery from one state to another and stores its
	// Attempts, NextAt, Error, RemoteID and SentAt. ErrGone when it was not in
	// that state.
	UpdateDelivery(ctx context.Context, from DeliveryState, d Delivery) error
	// Resplit replaces a delivery by smaller ones that take its place.
	Resplit(ctx context.Context, id DeliveryID, texts []string) error
	// OpenRooms returns every room with a delivery that is not final, and turns
	// deliveries that a dead process left in Sending into Ambiguous.
	OpenRooms(ctx context.Context) ([]adapters.ThreadKey, error)
	// Deliveries lists deliveries, newest first, of one state when that is not
	// empty.
	Deliveries(ctx context.Context, state DeliveryState, limit int) ([]Delivery, error)
	// RetryDelivery puts a held, rejected or waiting delivery up for sending
	// now, and lifts the block of its room.
	RetryDelivery(ctx context.Context, id DeliveryID, at time.Time) (Delivery, error)

	// SetBlock stores or replaces a block, LiftBlock removes it.
	SetBlock(ctx context.Context, b Block) error
	LiftBlock(ctx context.Context, ch adapters.Channel, room adapters.RoomID) error
	Blocks(ctx context.Context) ([]Block, error)

	// Audit appends entries.
	Audit(ctx context.Context, es ...AuditEntry) error
	// AuditLog returns the newest entries.
	AuditLog(ctx context.Context, limit int) ([]AuditEntry, error)
	// Depth counts what is open.
	Depth(ctx context.Context) (Depth, error)
	// Trace returns the inbox rows with the platform message id, or, when there
	// are none, those whose message id ends with "/" and id or whose run's id
	// ends with id, with the runs and deliveries that came of them.
	Trace(ctx context.Context, id adapters.MessageID) ([]Trace, error)
}

// Trace is the chain from a received message to what was posted.
type Trace struct {
	Row        InboxRow
	Run        *Run // nil when none was started
	Deliveries []Delivery
}
