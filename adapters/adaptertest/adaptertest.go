// Package adaptertest is what every channel adapter promises, as a suite. An
// adapter's own test starts a fake of its platform, describes it in a [Harness],
// and calls [Run].
//
// Platforms that call us and platforms that are asked run the same suite: the
// first get a real webhook to call, the second are listened to.
package adaptertest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"trill/adapters"
)

// hang is how long a test waits for what has to come. It decides nothing but
// when a broken adapter is given up.
const hang = 20 * time.Second

// Fault is something that goes wrong with sending.
type Fault string

// The faults of [Bench.Fail].
const (
	Limited Fault = "the platform says too many requests"
	Down    Fault = "the platform says it is down, before it did anything"
	Refused Fault = "nothing listens at the platform's address"
	Lost    Fault = "the platform takes the message and the answer is lost"
	Denied  Fault = "the platform does not know our credentials"
	TooLong Fault = "the platform says the message is too long"
	Stuck   Fault = "the platform does not answer"
)

// Said is a message of a person.
type Said struct {
	Text    string
	ReplyTo adapters.MessageID // an earlier Sent.ReplyTo, or empty
}

// Posted is a message of ours as people see it.
type Posted struct {
	Room    adapters.RoomID
	Thread  adapters.ThreadID // empty where ReplyTo already says it
	ReplyTo adapters.MessageID
	Text    string
	Key     string   // as the platform keeps it; empty where it does not
	Pings   []string // who was notified because of the text
}

// Bench is an adapter connected to a fake platform of its own.
type Bench struct {
	Adapter adapters.ChannelAdapter

	// Connect tells the fake where webhooks go. nil for a [adapters.Listener].
	Connect func(url string)

	// Say makes Person say something in Room, and returns the HTTP status the
	// webhook got, or 0 where there is none.
	Say func(ctx context.Context, s Said) (status int, err error)

	// Again delivers the last thing said once more, as it was. nil where that
	// does not happen.
	Again func(ctx context.Context) (status int, err error)

	// Forge delivers something said by somebody who is not the platform. nil
	// where nobody else can reach us.
	Forge func(ctx context.Context) (status int, err error)

	// Posted returns our messages in Room, oldest first.
	Posted func() []Posted

	// Fail makes the next send go wrong, and reports false when the platform
	// cannot fail like that.
	Fail func(Fault) bool

	// Finds says that an [adapters.Finder] is set up for looking: it may not
	// answer that it cannot.
	Finds bool

	Room   adapters.RoomID
	Person adapters.PersonID
}

// Harness describes a platform.
type Harness struct {
	// New starts a fake and an adapter connected to it; they end with the test.
	New func(t *testing.T) *Bench

	// Length measures a text as the platform does, Limit is what one message may
	// have of it.
	Length func(string) int
	Limit  int

	// Pings are texts that would notify somebody if a person wrote them.
	Pings []string
}

// Run tests what all adapters promise.
func Run(t *testing.T, h Harness) {
	t.Run("a message arrives", func(t *testing.T) { arrives(t, h) })
	t.Run("a message that comes again has the same id", func(t *testing.T) { comesAgain(t, h) })
	t.Run("a forged message does not arrive", func(t *testing.T) { forged(t, h) })
	t.Run("what cannot be stored is not acknowledged", func(t *testing.T) { notStored(t, h) })
	t.Run("an answer is posted where the question was", func(t *testing.T) { answers(t, h) })
	t.Run("a long answer comes whole in parts that fit", func(t *testing.T) { long(t, h) })
	t.Run("code stays code in every part", func(t *testing.T) { code(t, h) })
	t.Run("nothing to say is nothing to send", func(t *testing.T) { nothing(t, h) })
	t.Run("an answer notifies nobody it names", func(t *testing.T) { pings(t, h) })
	t.Run("a failed send says what follows", func(t *testing.T) { fails(t, h) })
	t.Run("sending ends with its context", func(t *testing.T) { cancelled(t, h) })
	t.Run("many send at once", func(t *testing.T) { concurrent(t, h) })
	t.Run("an emoji put twice is put once", func(t *testing.T) { reacts(t, h) })
	t.Run("it says where it is", func(t *testing.T) { about(t, h) })
}

// inbox hands what it accepts to the test.
type inbox struct {
	mu   sync.Mutex // guards fail
	fail error
	got  chan adapters.InboundMessage
}

func (in *inbox) Accept(ctx context.Context, ms ...adapters.InboundMessage) error {
	in.mu.Lock()
	fail := in.fail
	in.mu.Unlock()
	if fail != nil {
		return fail
	}
	for _, m := range ms {
		select {
		case in.got <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (in *inbox) failWith(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.fail = err
}

// next returns the next message that is not a report of the platform.
func (in *inbox) next(ctx context.Context, t *testing.T) adapters.InboundMessage {
	t.Helper()
	for {
		select {
		case m := <-in.got:
			if m.Kind == adapters.KindText {
				return m
			}
		case <-ctx.Done():
			t.Fatal("the message did not arrive")
		}
	}
}

// connect starts what brings messages to the inbox.
func connect(t *testing.T, b *Bench) (context.Context, *inbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	in := &inbox{got: make(chan adapters.InboundMessage, 1000)}
	roles := 0
	if receiver, ok := b.Adapter.(adapters.WebhookReceiver); ok && b.Connect != nil {
		roles++
		srv := httptest.NewServer(adapters.NewWebhook(receiver, in, adapters.WebhookConfig{}))
		t.Cleanup(srv.Close)
		b.Connect(srv.URL)
	}
	if listener, ok := b.Adapter.(adapters.Listener); ok && b.Connect == nil {
		roles++
		listening, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- listener.Listen(listening, in) }()
		t.Cleanup(func() {
			stop()
			select {
			case err := <-ended:
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("listen: %v", err)
				}
			case <-time.After(hang):
				t.Error("Listen does not end with its context")
			}
		})
	}
	if roles == 0 {
		t.Fatal("the adapter neither receives webhooks nor listens")
	}
	return ctx, in
}

// say says something and returns it as it arrived.
func say(ctx context.Context, t *testing.T, b *Bench, in *inbox, s Said) adapters.InboundMessage {
	t.Helper()
	status, err := b.Say(ctx, s)
	if err != nil {
		t.Fatalf("say: %v", err)
	}
	if status != 0 && status != 200 {
		t.Fatalf("the webhook answered %d, want 200", status)
	}
	return in.next(ctx, t)
}

func arrives(t *testing.T, h Harness) {
	b := h.New(t)
	ctx, in := connect(t, b)
	const text = "Grüße 😀 & <b>\nsecond line"
	m := say(ctx, t, b, in, Said{Text: text})
	if m.Platform != b.Adapter.Platform() || m.Platform == "" {
		t.Errorf("platform %q, want %q", m.Platform, b.Adapter.Platform())
	}
	if m.Channel == "" || m.ID == "" || m.ReplyTo == "" {
		t.Errorf("channel %q, id %q, reply to %q: none may be empty", m.Channel, m.ID, m.ReplyTo)
	}
	if m.Room != b.Room || m.Sender.ID != b.Person {
		t.Errorf("said by %q in %q, want %q in %q", m.Sender.ID, m.Room, b.Person, b.Room)
	}
	if m.Sender.Bot || m.Sender.Self {
		t.Errorf("a person is taken for a bot: %+v", m.Sender)
	}
	if strings.TrimSpace(m.Text) != text {
		t.Errorf("text %q, want %q", m.Text, text)
	}
	second := say(ctx, t, b, in, Said{Text: text})
	if second.ID == m.ID {
		t.Errorf("two messages have the id %q", m.ID)
	}
	reply := say(ctx, t, b, in, Said{Text: "reply", ReplyTo: m.ReplyTo})
	if reply.Text != "reply" || reply.Room != b.Room {
		t.Errorf("the reply arrived as %+v", reply)
	}
}

func comesAgain(t *testing.T, h Harness) {
	b := h.New(t)
	if b.Again == nil {
		t.Skip("does not happen on this platform")
	}
	ctx, in := connect(t, b)
	first := say(ctx, t, b, in, Said{Text: "once"})
	if status, err := b.Again(ctx); err != nil || status != 0 && status != 200 {
		t.Fatalf("delivered again: %d, %v, want 200", status, err)
	}
	again := in.next(ctx, t)
	if again.ID != first.ID || again.Digest != first.Digest || again.Key() != first.Key() {
		t.Errorf("came as %q %q %v, again as %q %q %v", first.ID, first.Digest, first.Key(), again.ID, again.Digest, again.Key())
	}
}

func forged(t *testing.T, h Harness) {
	b := h.New(t)
	if b.Forge == nil {
		t.Skip("nobody else can reach us on this platform")
	}
	ctx, in := connect(t, b)
	status, err := b.Forge(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status != 0 && status != 401 {
		t.Errorf("the webhook answered %d, want 401", status)
	}
	if m := say(ctx, t, b, in, Said{Text: "after the forgery"}); m.Text != "after the forgery" {
		t.Errorf("arrived: %q", m.Text)
	}
}

func notStored(t *testing.T, h Harness) {
	b := h.New(t)
	if b.Connect == nil {
		t.Skip("no webhook")
	}
	ctx, in := connect(t, b)
	in.failWith(errors.New("disk full"))
	if status, err := b.Say(ctx, Said{Text: "x"}); err != nil || status != 503 {
		t.Errorf("the webhook answered %d, %v, want 503", status, err)
	}
	in.failWith(nil)
	say(ctx, t, b, in, Said{Text: "later"})
}

// Key returns a key as deliveries have, made of the seed.
func Key(seed string) string {
	sum := sha256.Sum256([]byte(seed))
	return hex.EncodeToString(sum[:])
}

func answers(t *testing.T, h Harness) {
	b := h.New(t)
	ctx, in := connect(t, b)
	m := say(ctx, t, b, in, Said{Text: "question"})
	out := adapters.OutboundMessage{Room: m.Room, Thread: m.Thread, ReplyTo: m.ReplyTo, Text: "an **answer** 😀 & more", Key: Key("answers")}
	if _, err := b.Adapter.Send(ctx, out); err != nil {
		t.Fatal(err)
	}
	posted := b.Posted()
	if len(posted) != 1 {
		t.Fatalf("%d messages posted, want 1", len(posted))
	}
	p := posted[0]
	if p.Room != m.Room || p.ReplyTo != m.ReplyTo || p.Key != "" && p.Key != out.Key {
		t.Errorf("posted %+v in answer to %+v", p, m)
	}
	for _, word := range []string{"answer", "😀", "&", "more"} {
		if !strings.Contains(p.Text, word) {
			t.Errorf("text %q lacks %q", p.Text, word)
		}
	}
}

func long(t *testing.T, h Harness) {
	b := h.New(t)
	ctx, _ := connect(t, b)
	var text strings.Builder
	words := 0
	for h.Length(text.String()) < 2*h.Limit+h.Limit/2 {
		for range 200 {
			fmt.Fprintf(&text, "wörd%d 😀 ", words)
			words++
		}
		text.WriteString("\n\n")
	}
	parts := b.Adapter.Split(text.String())
	if len(parts) < 3 {
		t.Errorf("%d parts, want at least 3", len(parts))
	}
	for i, p := range parts {
		if n := h.Length(p); n > h.Limit {
			t.Errorf("part %d has %d, limit %d", i, n, h.Limit)
		}
		if _, err := b.Adapter.Send(ctx, adapters.OutboundMessage{Room: b.Room, Text: p, Key: Key(fmt.Sprint("long", i))}); err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	all := make([]string, 0, len(parts))
	for _, p := range b.Posted() {
		all = append(all, p.Text)
	}
	got := strings.Join(all, " ")
	for i := range words {
		word := fmt.Sprintf("wörd%d ", i)
		at := strings.Index(got+" ", word)
		if at < 0 {
			t.Fatalf("%q is missing, or in the wrong place", word)
		}
		got = got[min(len(got), at+len(word)-1):]
	}
}

func code(t *testing.T, h Harness) {
	b := h.New(t)
	line := strings.Repeat("x", 60) + "\n"
	text := "before\n\n```go\n" + strings.Repeat(line, 2*h.Limit/len(line)) + "```\n\nafter"
	parts := b.Adapter.Split(text)
	if len(parts) < 2 {
		t.Fatalf("%d parts, want at least 2", len(parts))
	}
	for i, p := range parts {
		if n := strings.Count(p, "```"); n%2 != 0 {
			t.Errorf("part %d has %d fences", i, n)
		}
		if n := h.Length(p); n > h.Limit {
			t.Errorf("part %d has %d, limit %d", i, n, h.Limit)
		}
	}
	if got, want := strings.Count(strings.Join(parts, ""), "x"), strings.Count(text, "x"); got != want {
		t.Errorf("%d of %d letters", got, want)
	}
}

func nothing(t *testing.T, h Harness) {
	b := h.New(t)
	for _, text := range []string{"", " ", "\n\t\n", "\u00a0"} {
		if parts := b.Adapter.Split(text); len(parts) != 0 {
			t.Errorf("%q makes %q", text, parts)
		}
	}
}

func pings(t *testing.T, h Harness) {
	for _, text := range h.Pings {
		for _, around := range []string{"%s", "hi %s!", "(%s)", "a\n%s", "`%s`", "```\n%s\n```", "x.%s", "@%s", "**%s**", "%[1]s%[1]s"} {
			b := h.New(t)
			ctx, _ := connect(t, b)
			for i, p := range b.Adapter.Split(fmt.Sprintf(around, text)) {
				if _, err := b.Adapter.Send(ctx, adapters.OutboundMessage{Room: b.Room, Text: p, Key: Key(fmt.Sprint(i, p))}); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range b.Posted() {
				if len(p.Pings) > 0 {
					t.Errorf("%q notified %q", p.Text, p.Pings)
				}
			}
		}
	}
}

func fails(t *testing.T, h Harness) {
	type verdict struct {
		retry, ambiguous, resplit, wait bool
		posted                          int
	}
	for fault, want := range map[Fault]verdict{
		Limited: {retry: true, wait: true},
		Down:    {retry: true},
		Refused: {retry: true},
		Lost:    {retry: true, ambiguous: true, posted: 1},
		Denied:  {},
		TooLong: {resplit: true},
	} {
		t.Run(string(fault), func(t *testing.T) {
			b := h.New(t)
			ctx, _ := connect(t, b)
			if !b.Fail(fault) {
				t.Skip("does not happen on this platform")
			}
			m := adapters.OutboundMessage{Room: b.Room, Text: "answer", Key: Key(string(fault))}
			_, err := b.Adapter.Send(ctx, m)
			e, ok := errors.AsType[*adapters.SendError](err)
			if !ok {
				t.Fatalf("error %T %v, want a *SendError", err, err)
			}
			got := verdict{e.Retry, e.Ambiguous, e.Resplit, e.After > 0, want.posted}
			if fault != Limited {
				got.wait = want.wait // others may wait or not
			}
			if got != want {
				t.Errorf("got %+v for %v, want %+v", got, err, want)
			}
			if e.Err == nil || e.Error() == "" {
				t.Error("the error has no words")
			}
			if fault != Refused && len(b.Posted()) != want.posted {
				t.Errorf("%d messages posted, want %d", len(b.Posted()), want.posted)
			}
			if fault == Lost {
				find(ctx, t, b, m)
			}
		})
	}
}

// find looks for a message that was posted although its answer was lost, and for
// one that was never sent. A platform that has to be set up for looking, and is
// not, says so.
func find(ctx context.Context, t *testing.T, b *Bench, posted adapters.OutboundMessage) {
	t.Helper()
	finder, ok := b.Adapter.(adapters.Finder)
	if !ok {
		return
	}
	// A queue can hold a message for long before it is sent.
	for _, since := range []time.Time{time.Now().Add(-hang), time.Now().Add(-24 * time.Hour)} {
		id, found, err := finder.Find(ctx, posted, since)
		if errors.Is(err, adapters.ErrCannotLook) && !b.Finds {
			if id != "" || found {
				t.Errorf("find: %q, %v although it cannot look", id, found)
			}
			return
		}
		if err != nil || !found {
			t.Errorf("find: %v, %v, want the message", found, err)
		}
		never := posted
		never.Key = Key("never sent")
		if id, found, err := finder.Find(ctx, never, since); err != nil || found || id != "" {
			t.Errorf("find what was never sent: %q, %v, %v, want certainty that it is not there", id, found, err)
		}
	}
}

func cancelled(t *testing.T, h Harness) {
	b := h.New(t)
	ctx, _ := connect(t, b)
	if !b.Fail(Stuck) {
		t.Skip("does not happen on this platform")
	}
	sending, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := b.Adapter.Send(sending, adapters.OutboundMessage{Room: b.Room, Text: "answer", Key: Key("cancelled")})
		done <- err
	}()
	cancel()
	select {
	case err := <-done:
		e, ok := errors.AsType[*adapters.SendError](err)
		if !ok || !e.Retry || !errors.Is(err, context.Canceled) {
			t.Errorf("error %v, want one to retry that wraps context.Canceled", err)
		}
	case <-ctx.Done():
		t.Error("Send does not end with its context")
	}
}

func concurrent(t *testing.T, h Harness) {
	b := h.New(t)
	ctx, in := connect(t, b)
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			text := fmt.Sprintf("message %d.", i)
			if _, err := b.Adapter.Send(ctx, adapters.OutboundMessage{Room: b.Room, Text: text, Key: Key(text)}); err != nil {
				t.Errorf("send: %v", err)
			}
		})
		all.Go(func() {
			if status, err := b.Say(ctx, Said{Text: fmt.Sprintf("said %d.", i)}); err != nil || status != 0 && status != 200 {
				t.Errorf("say: %d, %v", status, err)
			}
		})
		all.Go(func() { b.Adapter.Split(strings.Repeat("word ", 1000)) })
	}
	all.Wait()
	posted := make(map[string]bool)
	for _, p := range b.Posted() {
		posted[p.Text] = true
	}
	ids := make(map[adapters.MessageID]bool)
	for range n {
		ids[in.next(ctx, t).ID] = true
	}
	if len(posted) != n || len(ids) != n {
		t.Errorf("%d different messages posted and %d received, want %d", len(posted), len(ids), n)
	}
}

func reacts(t *testing.T, h Harness) {
	b := h.New(t)
	reactor, ok := b.Adapter.(adapters.Reactor)
	if !ok {
		t.Skip("no reactions")
	}
	ctx, in := connect(t, b)
	m := say(ctx, t, b, in, Said{Text: "like this"})
	for range 2 {
		if err := reactor.React(ctx, adapters.Reaction{Room: m.Room, Message: m.ReplyTo, Emoji: "👀"}); err != nil {
			t.Errorf("react: %v", err)
		}
	}
	err := reactor.React(ctx, adapters.Reaction{Room: m.Room, Message: "999999999", Emoji: "👀"})
	if e, ok := errors.AsType[*adapters.SendError](err); !ok || e.Retry {
		t.Errorf("a reaction on nothing: %v, want a *SendError that is final", err)
	}
}

func about(t *testing.T, h Harness) {
	if n := utf8.RuneCountInString(h.New(t).Adapter.About()); n < 40 || n > 2000 {
		t.Errorf("About has %d code points, want a few sentences", n)
	}
}
