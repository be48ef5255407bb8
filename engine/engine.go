// Package engine runs agent sessions: a request goes in, the model works with
// tools under gates, and events come out until there is an answer.
//
// It is a library and imports nothing else of this module outside its own
// folder. Everything that must survive a crash is an event in a
// [session.Store]; a run that was cut off is taken up again from its transcript.
// Who asked, where the answer goes and what is durable around a run is the
// caller's business.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/oklog/ulid/v2"

	"trill/engine/provider"
	"trill/engine/session"
	"trill/engine/tool"
)

// Config is what an [Engine] is made of. Provider and Store are required.
type Config struct {
	Provider provider.Provider
	Store    session.Store
	Tools    []tool.Tool
	// Gates are asked in order before a call runs; the strictest verdict counts.
	// Without gates every valid call runs.
	Gates []tool.Gate

	// System is the operator's own text for the system prompt.
	System string
	// ContextWindow is how many tokens the model takes; 0 means 128,000. Older
	// events leave the prompt before it is full.
	ContextWindow int
	// ToolTimeout bounds one call of a tool without a timeout of its own; 0
	// means two minutes.
	ToolTimeout time.Duration
	// MaxResult bounds what a call may put into the prompt, in bytes; 0 means
	// 60,000. The middle of a longer result is left out.
	MaxResult int
	// Retry says how often a failed model call is tried again.
	Retry Retry
	// Redact takes secrets out of text before it is stored or sent; nil keeps
	// text as it is.
	Redact func(string) string

	Log *slog.Logger     // nil: nothing is logged
	Now func() time.Time // nil: time.Now
}

// Retry bounds the tries of one model call. Waits are drawn at random between 0
// and Base, 2*Base, 4*Base, ... up to Cap, and are never shorter than what the
// server asked for.
type Retry struct {
	Tries    int           // 0 means 8
	Base     time.Duration // 0 means 1 s
	Cap      time.Duration // 0 means 60 s
	Deadline time.Duration // for all tries together; 0 means 10 min
}

// Engine runs sessions. Its methods may be called from several goroutines, but a
// session has one run at a time.
type Engine struct {
	conf  Config
	tools *toolbox
	cache *cache
}

// Request is one run.
type Request struct {
	// Session is continued, or created when it is new; empty makes a new id.
	Session session.ID
	// Run is a new id, or the one to take up again; empty makes a new id.
	Run session.RunID
	// Text is what is asked. Empty means that the transcript already has the
	// request: the run is taken up where it stands.
	Text string
	// Person, Role and Channel say who asks from where, for the gates.
	Person  string
	Role    string
	Channel string
	// About tells the model where it is; part of the system prompt.
	About string
	// Workspace is the folder that tools work in. Empty: a session without
	// tools.
	Workspace string

	// Approve asks people about a call that no gate allows by itself; nil
	// refuses such calls.
	Approve func(context.Context, Ask) (Approval, error)
	// Steer returns what was added to the run since it was last called, as
	// events that continue the transcript at next and are already stored. Nil:
	// nothing is ever added.
	Steer func(ctx context.Context, next int64) ([]session.Event, error)
	// Finish stores the last events of the run in place of Store.Append, so
	// that the end of a run and what follows from it can be one step.
	Finish func(ctx context.Context, last []session.Event) error
}

// Ask is a question to people: may this call run?
type Ask struct {
	Session session.ID
	Run     session.RunID
	Call    tool.Call
	Reason  string // why it is not simply allowed
}

// Approval is the answer to an [Ask].
type Approval struct {
	Allowed bool
	By      string // who decided; empty when nobody did in time
	Reason  string // what the model is told
}

// Event is what a run shows while it goes on: a piece of the model's text as it
// arrives, or an event that has just been stored.
type Event struct {
	Delta  string         // not stored; void once a Retry is stored
	Stored *session.Event // nil for a delta
}

// ErrStopped as the cause of a context's end means that a person stopped the
// run: it is closed. With any other cause the run stays open, to be taken up
// again.
var ErrStopped = errors.New("stopped by a person")

// New returns an engine. It starts nothing.
func New(conf Config) (*Engine, error) {
	var errs []error
	if conf.Provider == nil {
		errs = append(errs, errors.New("Provider: is required"))
	}
	if conf.Store == nil {
		errs = append(errs, errors.New("Store: is required"))
	}
	tools, err := newToolbox(conf.Tools)
	if err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("engine config: %w", err)
	}
	conf.ContextWindow = cmp.Or(conf.ContextWindow, 128_000)
	conf.ToolTimeout = cmp.Or(conf.ToolTimeout, 2*time.Minute)
	conf.MaxResult = cmp.Or(conf.MaxResult, 60_000)
	conf.Retry = Retry{
		Tries:    cmp.Or(conf.Retry.Tries, 8),
		Base:     cmp.Or(conf.Retry.Base, time.Second),
		Cap:      cmp.Or(conf.Retry.Cap, time.Minute),
		Deadline: cmp.Or(conf.Retry.Deadline, 10*time.Minute),
	}
	if conf.Redact == nil {
		conf.Redact = func(s string) string { return s }
	}
	if conf.Log == nil {
		conf.Log = slog.New(slog.DiscardHandler)
	}
	if conf.Now == nil {
		conf.Now = time.Now
	}
	return &Engine{conf: conf, tools: tools, cache: newCache(cacheBytes)}, nil
}

// Run works on a request until there is an answer, and yields what happens. The
// last event of a run that ended is an End. An error means that the run is still
// open: nothing that was stored is lost, and a Request with its Run and without
// Text takes it up again. Leaving the loop early does the same.
func (e *Engine) Run(ctx context.Context, req Request) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		r := e.newRun(ctx, req, yield)
		defer r.cancel(nil)
		if err := r.work(); err != nil && !r.left {
			yield(Event{}, err)
		}
	}
}

// GiveUp ends an open run as failed without working on it any more. The people
// are told text, cause is for operators.
func (e *Engine) GiveUp(ctx context.Context, req Request, cause error, text string) error {
	r := e.newRun(ctx, req, func(Event, error) bool { return true })
	defer r.cancel(nil)
	return r.giveUp(cause, text)
}

func (e *Engine) newRun(ctx context.Context, req Request, yield func(Event, error) bool) *run {
	if req.Session == "" {
		req.Session = NewSessionID()
	}
	if req.Run == "" {
		req.Run = NewRunID()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	return &run{
		eng: e, req: req, ctx: ctx, cancel: cancel, yield: yield,
		log: e.conf.Log.With("session", req.Session, "run", req.Run),
	}
}

// NewSessionID returns a fresh id.
func NewSessionID() session.ID { return session.ID("sess_" + ulid.Make().String()) }

// NewRunID returns a fresh id.
func NewRunID() session.RunID { return session.RunID("run_" + ulid.Make().String()) }

// ShortID is the end of a run's id: what people are shown to find it again.
func ShortID(id session.RunID) string { return string(id[max(0, len(id)-8):]) }

// toolbox is a set of tools by name.
type toolbox struct {
	byName map[string]entry
	specs  []provider.Tool // sorted by name
}

type entry struct {
	tool  tool.Tool
	spec  tool.Spec
	check *tool.Validator
}

func newToolbox(tools []tool.Tool) (*toolbox, error) {
	b := &toolbox{byName: map[string]entry{}}
	for _, t := range tools {
		s := t.Spec()
		if _, twice := b.byName[s.Name]; twice {
			return nil, fmt.Errorf("Tools: two are named %q", s.Name)
		}
		v, err := tool.NewValidator(s)
		if err != nil {
			return nil, fmt.Errorf("Tools: %w", err)
		}
		b.byName[s.Name] = entry{t, s, v}
		b.specs = append(b.specs, provider.Tool{Name: s.Name, Description: s.Description, Schema: s.Schema})
	}
	slices.SortFunc(b.specs, func(a, b provider.Tool) int { return cmp.Compare(a.Name, b.Name) })
	return b, nil
}

func (b *toolbox) names() []string {
	names := make([]string, len(b.specs))
	for i, s := range b.specs {
		names[i] = s.Name
	}
	return names
}
