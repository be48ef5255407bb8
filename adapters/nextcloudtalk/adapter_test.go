package nextcloudtalk_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"trill/adapters"
	"trill/adapters/adaptertest"
	"trill/adapters/nextcloudtalk"
	"trill/adapters/nextcloudtalk/talktest"
)

// talk is an adapter connected to a server of its own.
type talk struct {
	*nextcloudtalk.Adapter
	server *talktest.Server
	conf   nextcloudtalk.Config
}

func connect(t testing.TB, sc talktest.Config, ac nextcloudtalk.Config) talk {
	t.Helper()
	if sc.Secret == "" {
		sc.Secret = secret
	}
	s := talktest.New(sc)
	url, err := s.Start()
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		s.Close()
	})
	if ac.URL == "" {
		ac.URL = url
	}
	if ac.Secret == "" {
		ac.Secret = secret
	}
	a, err := nextcloudtalk.New("cloud", ac, &http.Client{Transport: transport}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	s.AddRoom("room1", "Room")
	_, _ = s.Enable(t.Context(), "room1") // nobody listens yet
	return talk{a, s, ac}
}

func TestAdapter(t *testing.T) {
	adaptertest.Run(t, adaptertest.Harness{
		Length: utf8.RuneCountInString,
		Limit:  32_000,
		Pings:  []string{"@bob", "@all", `@"bob"`, `@"group/admins"`, `@"federated_user/x@y"`, `@"guest/abc"`, "@'x", "@-x", "@bob@all"},
		New: func(t *testing.T) *adaptertest.Bench {
			tk := connectAccount(t, talktest.Config{})
			var mu sync.Mutex // guards last
			var last talktest.Delivery
			b := &adaptertest.Bench{
				Adapter: tk, Room: "room1", Person: "users/alice", Connect: tk.server.SetBot, Finds: true,
				Say: func(ctx context.Context, s adaptertest.Said) (int, error) {
					reply, _ := strconv.ParseInt(string(s.ReplyTo), 10, 64)
					d, err := tk.server.Post(ctx, "room1", "users/alice", s.Text, talktest.PostOptions{ReplyTo: reply})
					mu.Lock()
					defer mu.Unlock()
					last = d
					return d.Status, err
				},
				Again: func(ctx context.Context) (int, error) {
					mu.Lock()
					defer mu.Unlock()
					d, err := tk.server.DeliverAs(ctx, last.Header, last.Body)
					return d.Status, err
				},
				Forge: func(ctx context.Context) (int, error) {
					body := []byte(note(`"1"`, `{"message":"forged","parameters":[]}`, "", "r"))
					h := tk.server.Sign(body)
					h.Set("X-Nextcloud-Talk-Signature", strings.Repeat("0", 64))
					d, err := tk.server.DeliverAs(ctx, h, body)
					return d.Status, err
				},
				Posted: func() []adaptertest.Posted {
					var ps []adaptertest.Posted
					for _, m := range tk.server.Messages("room1") {
						p := adaptertest.Posted{Room: adapters.RoomID(m.Room), Text: m.Text, Key: m.ReferenceID, Pings: m.Mentions}
						if m.ReplyTo != 0 {
							p.ReplyTo = adapters.MessageID(strconv.FormatInt(m.ReplyTo, 10))
						}
						ps = append(ps, p)
					}
					return ps
				},
			}
			b.Fail = func(f adaptertest.Fault) bool {
				switch f {
				case adaptertest.Limited:
					tk.server.FailNext(1, http.StatusTooManyRequests)
				case adaptertest.Down:
					tk.server.Maintenance(true)
				case adaptertest.Refused:
					b.Adapter = newAdapter(t, nextcloudtalk.Config{URL: "http://" + closedPort(t)})
				case adaptertest.Lost:
					tk.server.DropNext(1)
				case adaptertest.Denied:
					b.Adapter = newAdapter(t, nextcloudtalk.Config{URL: tk.conf.URL, Secret: adapters.Secret(strings.Repeat("wrong", 10))})
				case adaptertest.TooLong:
					tk.server.FailNext(1, http.StatusRequestEntityTooLarge)
				case adaptertest.Stuck:
					tk.server.Latency(func(r *http.Request) { <-r.Context().Done() })
				}
				return true
			}
			return b
		},
	})
}

// closedPort is an address where nothing listens.
func closedPort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestConfigNamesEveryFault(t *testing.T) {
	good := nextcloudtalk.Config{URL: server, Secret: secret}
	change := func(f func(*nextcloudtalk.Config)) nextcloudtalk.Config {
		c := good
		f(&c)
		return c
	}
	type conf = nextcloudtalk.Config
	for name, c := range map[string]struct {
		conf   conf
		faults []string // keys, in order
	}{
		"good":                   {good, nil},
		"sub-folder":             {change(func(c *conf) { c.URL += "/nextcloud/" }), nil},
		"nothing":                {conf{}, []string{"url", "secret"}},
		"A12 W6 no secret":       {change(func(c *conf) { c.Secret = "" }), []string{"secret"}},
		"secret of 39":           {change(func(c *conf) { c.Secret = adapters.Secret(strings.Repeat("x", 39)) }), []string{"secret"}},
		"secret of 128":          {change(func(c *conf) { c.Secret = adapters.Secret(strings.Repeat("x", 128)) }), nil},
		"secret of 129":          {change(func(c *conf) { c.Secret = adapters.Secret(strings.Repeat("x", 129)) }), []string{"secret"}},
		"no scheme":              {change(func(c *conf) { c.URL = "cloud.example.com" }), []string{"url"}},
		"ftp":                    {change(func(c *conf) { c.URL = "ftp://cloud.example.com" }), []string{"url"}},
		"no host":                {change(func(c *conf) { c.URL = "https://" }), []string{"url"}},
		"password in the url":    {change(func(c *conf) { c.URL = "https://u:hunter2@cloud.example.com" }), []string{"url"}},
		"query":                  {change(func(c *conf) { c.URL += "/?x=1" }), []string{"url"}},
		"fragment":               {change(func(c *conf) { c.URL += "/#" }), []string{"url"}},
		"the API":                {change(func(c *conf) { c.URL += "/ocs/v2.php" }), []string{"url"}},
		"everything else":        {change(func(c *conf) { c.WebhookURL, c.Backend, c.Host, c.MaxLength = "x", "y", "a/b", 5 }), []string{"webhook_url", "backend", "host", "max_length"}},
		"an account":             {change(func(c *conf) { c.Account, c.AppPassword = "reader@example.com", "hunter2" }), nil},
		"without a password":     {change(func(c *conf) { c.Account = "reader" }), []string{"app_password"}},
		"without an account":     {change(func(c *conf) { c.AppPassword = "hunter2" }), []string{"account"}},
		"a colon in the account": {change(func(c *conf) { c.Account, c.AppPassword = "reader:x", "hunter2" }), []string{"account"}},
		"length above Talk's":    {change(func(c *conf) { c.MaxLength = 32_001 }), []string{"max_length"}},
		"host with a port is ok": {change(func(c *conf) { c.Host = "cloud.example.com:8443" }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			var keys []string
			if err := c.conf.Validate(); err != nil {
				for line := range strings.Lines(err.Error()) {
					key, _, _ := strings.Cut(line, ":")
					keys = append(keys, key)
				}
				if strings.Contains(err.Error(), "hunter2") || c.conf.Secret != "" && strings.Contains(err.Error(), c.conf.Secret.Reveal()) {
					t.Errorf("the error tells a secret: %v", err)
				}
			}
			if diff := cmp.Diff(c.faults, keys); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			if _, err := nextcloudtalk.New("cloud", c.conf, nil, slog.New(slog.DiscardHandler)); (err == nil) != (c.faults == nil) {
				t.Errorf("New: %v", err)
			}
		})
	}
}

func send(t *testing.T, tk talk, m adapters.OutboundMessage) *adapters.SendError {
	t.Helper()
	if m.Room == "" {
		m.Room = "room1"
	}
	if m.Key == "" {
		m.Key = adaptertest.Key("x")
	}
	id, err := tk.Send(t.Context(), m)
	if id != "" {
		t.Errorf("N5: an id %q that the server did not tell", id)
	}
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*adapters.SendError](err)
	if !ok {
		t.Fatalf("error %T %v, want a *SendError", err, err)
	}
	return e
}

func TestSendCarriesWhatItShould(t *testing.T) {
	tk := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	d, _ := tk.server.Post(t.Context(), "room1", "users/alice", "question", talktest.PostOptions{})
	id := adapters.MessageID(strconv.FormatInt(d.ID, 10))
	key := adaptertest.Key("k")
	for name, c := range map[string]struct {
		m    adapters.OutboundMessage
		want talktest.Posted
	}{
		"plain":                            {adapters.OutboundMessage{Text: "a"}, talktest.Posted{Text: "a"}},
		"N1 letters the JSON escapes":      {adapters.OutboundMessage{Text: "äöü 😀 & <b> \u2028 \"q\" \\ /"}, talktest.Posted{Text: "äöü 😀 & <b> \u2028 \"q\" \\ /"}},
		"what is not UTF-8":                {adapters.OutboundMessage{Text: "a\xffb"}, talktest.Posted{Text: "a\ufffdb"}},
		"N7 a reply, in a thread too":      {adapters.OutboundMessage{Text: "b", ReplyTo: id, Thread: "7"}, talktest.Posted{Text: "b", ReplyTo: d.ID}},
		"N7 in a thread":                   {adapters.OutboundMessage{Text: "c", Thread: "7"}, talktest.Posted{Text: "c", ThreadID: 7}},
		"silent":                           {adapters.OutboundMessage{Text: "d", Silent: true}, talktest.Posted{Text: "d", Silent: true}},
		"an id of another platform":        {adapters.OutboundMessage{Text: "e", ReplyTo: "abc", Thread: "t"}, talktest.Posted{Text: "e"}},
		"in answer to a deleted message":   {adapters.OutboundMessage{Text: "f", ReplyTo: "999"}, talktest.Posted{Text: "f"}},
		"that, in a thread":                {adapters.OutboundMessage{Text: "g", ReplyTo: "999", Thread: "7"}, talktest.Posted{Text: "g", ThreadID: 7}},
		"32,000 code points, 4 bytes each": {adapters.OutboundMessage{Text: strings.Repeat("😀", 32_000)}, talktest.Posted{Text: strings.Repeat("😀", 32_000)}},
	} {
		t.Run(name, func(t *testing.T) {
			c.m.Key = key
			if err := send(t, tk, c.m); err != nil {
				t.Fatal(err)
			}
			all := tk.server.Messages("room1")
			got := all[len(all)-1]
			c.want.ID, c.want.At, c.want.Room, c.want.Actor, c.want.ReferenceID = got.ID, got.At, "room1", tk.server.BotID(), key
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("posted (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSendSaysWhatFollowsFromARefusal(t *testing.T) {
	const half = 30 * time.Minute
	for name, c := range map[string]struct {
		status int
		after  string
		want   adapters.SendError // without Err and Status
		words  string
	}{
		"N6 400":               {400, "", adapters.SendError{}, "400"},
		"N8 401":               {401, "", adapters.SendError{Scope: adapters.ScopeRoom}, "not enabled in this room"},
		"403":                  {403, "", adapters.SendError{Scope: adapters.ScopeRoom}, "403"},
		"404":                  {404, "", adapters.SendError{}, "404"},
		"412":                  {412, "", adapters.SendError{Scope: adapters.ScopeChannel}, "OCS-APIRequest"},
		"413":                  {413, "", adapters.SendError{Resplit: true}, "too long"},
		"429":                  {429, "", adapters.SendError{Retry: true, After: half, Scope: adapters.ScopeChannel}, "bruteforce"},
		"429 for a minute":     {429, "60", adapters.SendError{Retry: true, After: half, Scope: adapters.ScopeChannel}, "bruteforce"},
		"429 for an hour":      {429, "3600", adapters.SendError{Retry: true, After: time.Hour, Scope: adapters.ScopeChannel}, "bruteforce"},
		"429 for ever":         {429, "999999999", adapters.SendError{Retry: true, After: 24 * time.Hour, Scope: adapters.ScopeChannel}, "bruteforce"},
		"500":                  {500, "", adapters.SendError{Retry: true, Ambiguous: true}, "500"},
		"502":                  {502, "", adapters.SendError{Retry: true, Ambiguous: true}, "502"},
		"504":                  {504, "", adapters.SendError{Retry: true, Ambiguous: true}, "504"},
		"503 for two minutes":  {503, "120", adapters.SendError{Retry: true, After: 2 * time.Minute}, "maintenance"},
		"redirected elsewhere": {302, "", adapters.SendError{Scope: adapters.ScopeChannel}, "set url"},
	} {
		t.Run(name, func(t *testing.T) {
			tk := connect(t, talktest.Config{}, nextcloudtalk.Config{})
			tk.server.FailNextAfter(1, c.status, c.after)
			e := send(t, tk, adapters.OutboundMessage{Text: "x"})
			if e == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(e.Error(), c.words) || !strings.HasPrefix(e.Error(), "post message: ") {
				t.Errorf("error %q, want %q in it", e, c.words)
			}
			c.want.Err, c.want.Status = e.Err, c.status
			if *e != c.want {
				t.Errorf("got %+v, want %+v", *e, c.want)
			}
			if n := len(tk.server.Calls()); n != 1 {
				t.Errorf("%d calls, want 1", n)
			}
		})
	}
}

func TestSendTriesOnceWithoutTheReplyAndNotMore(t *testing.T) {
	tk := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	tk.server.FailNext(5, http.StatusBadRequest)
	if e := send(t, tk, adapters.OutboundMessage{Text: "x", ReplyTo: "1"}); e == nil || e.Retry {
		t.Errorf("error %v, want one that is final", e)
	}
	if n := len(tk.server.Calls()); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
}

func TestSendRefusesByItselfWhatTheServerWould(t *testing.T) {
	tk := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	for name, m := range map[string]adapters.OutboundMessage{
		"white space":      {Text: " \n\t"},
		"a room elsewhere": {Text: "x", Room: "../../admin"},
	} {
		if e := send(t, tk, m); e == nil || e.Retry {
			t.Errorf("%s: error %v, want one that is final", name, e)
		}
	}
	if n := len(tk.server.Calls()); n != 0 {
		t.Errorf("%d calls, want none", n)
	}
}

func TestMaintenanceAndHostNamesAreToldApart(t *testing.T) {
	tk := connect(t, talktest.Config{TrustedHosts: []string{"cloud.example.com"}}, nextcloudtalk.Config{})
	e := send(t, tk, adapters.OutboundMessage{Text: "x", ReplyTo: "5"})
	if e == nil || e.Retry || e.Scope != adapters.ScopeChannel || !strings.Contains(e.Error(), "trusted_domains") {
		t.Errorf("error %v, want advice about trusted_domains", e)
	}
	tk = connect(t, talktest.Config{TrustedHosts: []string{"cloud.example.com"}}, nextcloudtalk.Config{Host: "cloud.example.com"})
	if e := send(t, tk, adapters.OutboundMessage{Text: "x"}); e != nil {
		t.Errorf("with host set: %v", e)
	}
	tk.server.Maintenance(true)
	if e := send(t, tk, adapters.OutboundMessage{Text: "x"}); e == nil || !e.Retry || e.Ambiguous || e.Status != 503 {
		t.Errorf("in maintenance: %+v", e)
	}
}

func TestErrorsTellNoSecret(t *testing.T) {
	tk := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	tk.server.DropNext(1)
	lost := send(t, tk, adapters.OutboundMessage{Text: "x"})
	tk.server.FailNext(1, 401)
	denied := send(t, tk, adapters.OutboundMessage{Text: "x"})
	refused := newAdapter(t, nextcloudtalk.Config{URL: "http://" + closedPort(t)})
	_, err := refused.Send(t.Context(), adapters.OutboundMessage{Room: "room1", Text: "x"})
	for _, err := range []error{lost, denied, err} {
		if s := fmt.Sprintf("%v %+v", err, err); strings.Contains(s, secret) || strings.Contains(s, "room1") {
			t.Errorf("error %q", s)
		}
	}
}

func TestAnswersThatAreNotNextcloudsAreDoubted(t *testing.T) {
	for name, c := range map[string]struct {
		status          int
		body            string
		sent, ambiguous bool
	}{
		"a login page":                   {200, "<html>log in</html>", false, true},
		"an error in a success":          {200, `{"ocs":{"meta":{"statuscode":401,"message":""},"data":null}}`, false, false},
		"an error in 201":                {201, `{"ocs":{"meta":{"statuscode":404,"message":"x"},"data":null}}`, false, false},
		"a success without a body":       {201, "", true, false},
		"the success of version 1":       {200, `{"ocs":{"meta":{"statuscode":100,"message":"OK"},"data":null}}`, true, false},
		"a success that is far too long": {201, strings.Repeat("x", 1<<20), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			})}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go srv.Serve(l)
			defer srv.Close()
			a := newAdapter(t, nextcloudtalk.Config{URL: "http://" + l.Addr().String()})
			_, err = a.Send(t.Context(), adapters.OutboundMessage{Room: "room1", Text: "x"})
			e, _ := errors.AsType[*adapters.SendError](err)
			if (err == nil) != c.sent || e != nil && e.Ambiguous != c.ambiguous {
				t.Errorf("error %v, want sent = %v, ambiguous = %v", err, c.sent, c.ambiguous)
			}
		})
	}
}

func TestN8AWrongSecretDoesNotLockUsOutAtOnce(t *testing.T) {
	now := time.Now()
	tk := connect(t, talktest.Config{Now: func() time.Time { return now }}, nextcloudtalk.Config{})
	for i := range 11 {
		want := 401
		if i == 10 {
			want = 500
		}
		if e := send(t, tk, adapters.OutboundMessage{Text: "x", Room: "unknown"}); e == nil || e.Status != want || e.Retry != (want == 500) {
			t.Errorf("call %d: %+v, want %d", i+1, e, want)
		}
	}
	if e := send(t, tk, adapters.OutboundMessage{Text: "x"}); e == nil || e.Status != 429 || e.After < 30*time.Minute {
		t.Errorf("a right call after that: %+v, want a pause of 30 minutes", e)
	}
	now = now.Add(31 * time.Minute)
	if e := send(t, tk, adapters.OutboundMessage{Text: "x"}); e != nil {
		t.Errorf("after 31 minutes: %v", e)
	}
}

func TestReactions(t *testing.T) {
	tk := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	d, _ := tk.server.Post(t.Context(), "room1", "users/alice", "x", talktest.PostOptions{})
	sys, _ := tk.server.System(t.Context(), "room1", "users/alice", "call_started", "call")
	id := func(n int64) adapters.MessageID { return adapters.MessageID(strconv.FormatInt(n, 10)) }
	for name, c := range map[string]struct {
		r      adapters.Reaction
		status int // 0: none
	}{
		"an emoji":           {adapters.Reaction{Message: id(d.ID), Emoji: "👍"}, 0},
		"the same again":     {adapters.Reaction{Message: id(d.ID), Emoji: "👍"}, 0},
		"a family":           {adapters.Reaction{Message: id(d.ID), Emoji: "👨‍👩‍👧‍👦"}, 0},
		"text":               {adapters.Reaction{Message: id(d.ID), Emoji: "abc"}, 400},
		"two emoji":          {adapters.Reaction{Message: id(d.ID), Emoji: "👍👍"}, 400},
		"on a report":        {adapters.Reaction{Message: id(sys.ID), Emoji: "👍"}, 400},
		"on nothing":         {adapters.Reaction{Message: "999", Emoji: "👍"}, 404},
		"on a path":          {adapters.Reaction{Message: "../1", Emoji: "👍"}, 0},
		"in an unknown room": {adapters.Reaction{Room: "nowhere", Message: id(d.ID), Emoji: "👍"}, 401},
	} {
		if c.r.Room == "" {
			c.r.Room = "room1"
		}
		err := tk.React(t.Context(), c.r)
		e, _ := errors.AsType[*adapters.SendError](err)
		switch {
		case name == "on a path":
			if e == nil || e.Retry {
				t.Errorf("%s: %v", name, err)
			}
		case c.status == 0 && err != nil, c.status != 0 && (e == nil || e.Status != c.status || e.Retry):
			t.Errorf("%s: %v, want %d", name, err, c.status)
		}
	}
	if got := len(tk.server.Reactions("room1")); got != 2 {
		t.Errorf("%d reactions, want 2", got)
	}
	tk.server.DropNext(1)
	err := tk.React(t.Context(), adapters.Reaction{Room: "room1", Message: id(d.ID), Emoji: "👀"})
	if e, _ := errors.AsType[*adapters.SendError](err); e == nil || !e.Retry || e.Ambiguous {
		t.Errorf("answer lost: %v, want one to try again without doubt", err)
	}
}

func TestMentionsAreBroken(t *testing.T) {
	const j = "\u2060"
	a := newAdapter(t, nextcloudtalk.Config{})
	for in, want := range map[string]string{
		"@all":               "@" + j + "all",
		`hi @"group/x" @bob`: `hi @` + j + `"group/x" @` + j + "bob",
		"a.b+c@example.com":  "a.b+c@example.com",
		"x_@bob":             "x_@bob",
		"a.@bob":             "a.@" + j + "bob",
		"é@bob":              "é@" + j + "bob",
		"@@bob":              "@" + j + "@" + j + "bob",
		"@ bob":              "@ bob",
		"bob@":               "bob@",
		"`@Override`":        "`@" + j + "Override`",
		"@" + j + "bob":      "@" + j + "bob",
	} {
		if diff := cmp.Diff([]string{want}, a.Split(in)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestAMentionMadeByCuttingIsBroken(t *testing.T) {
	a := newAdapter(t, nextcloudtalk.Config{MaxLength: 200})
	for n := 150; n < 250; n++ {
		for i, p := range a.Split(strings.Repeat("x", n) + "@all " + strings.Repeat("y@all", 100)) {
			if strings.HasPrefix(p, "@a") {
				t.Fatalf("n = %d: part %d starts with a mention: %q", n, i, p[:10])
			}
			if utf8.RuneCountInString(p) > 200 {
				t.Fatalf("n = %d: part %d is too long", n, i)
			}
		}
	}
}

func FuzzSplit(f *testing.F) {
	f.Add("hi @all `@bob` ```go\n@x\n``` a@b.c")
	f.Add(strings.Repeat("x", 199) + "@all")
	tk := newAdapter(f, nextcloudtalk.Config{MaxLength: 200})
	f.Fuzz(func(t *testing.T, text string) {
		for _, p := range tk.Split(text) {
			if utf8.RuneCountInString(p) > 200 || strings.TrimSpace(p) == "" || !utf8.ValidString(p) {
				t.Errorf("part %q", p)
			}
			if m := talktest.Mentions(p); len(m) > 0 {
				t.Errorf("%q mentions %q", p, m)
			}
		}
	})
}

func TestAServerThatTakesLessTeachesUs(t *testing.T) {
	tk := connect(t, talktest.Config{MaxLength: 1000}, nextcloudtalk.Config{})
	text := strings.Repeat("word ", 2000)
	parts := tk.Split(text)
	if e := send(t, tk, adapters.OutboundMessage{Text: parts[0]}); e == nil || !e.Resplit {
		t.Fatalf("error %v, want resplit", e)
	}
	if again := tk.Split(text); len(again) < 2 {
		t.Errorf("split again into %d parts", len(again))
	}
	tk.Check(t.Context())
	for _, p := range tk.Split(text) {
		if e := send(t, tk, adapters.OutboundMessage{Text: p}); e != nil {
			t.Errorf("after a check: %v", e)
		}
	}
}

func TestCheckSaysWhatToDo(t *testing.T) {
	good := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	down := connect(t, talktest.Config{}, nextcloudtalk.Config{})
	down.server.Maintenance(true)
	host := connect(t, talktest.Config{TrustedHosts: []string{"x"}}, nextcloudtalk.Config{})
	for name, c := range map[string]struct {
		a interface {
			Check(context.Context) []adapters.Finding
		}
		ok    bool
		words []string
	}{
		"good":        {good, true, []string{"Nextcloud 31.0.6", "Talk 21.1.0", "do not say who reacted", "32000", "N4 never with event", "webhook_url"}},
		"maintenance": {down, false, []string{"maintenance"}},
		"host":        {host, false, []string{"trusted_domains"}},
		"nothing":     {newAdapter(t, nextcloudtalk.Config{URL: "http://" + closedPort(t)}), false, []string{"refused", "check url"}},
	} {
		t.Run(name, func(t *testing.T) {
			findings := c.a.Check(t.Context())
			if findings[0].OK != c.ok {
				t.Errorf("reached: %v, want %v", findings[0].OK, c.ok)
			}
			all := fmt.Sprintf("%+v", findings)
			for _, w := range c.words {
				if w = strings.TrimPrefix(w, "N4 "); !strings.Contains(all, w) {
					t.Errorf("%q is not in %s", w, all)
				}
			}
			for _, f := range findings {
				if !f.OK && f.Advice == "" {
					t.Errorf("no advice: %+v", f)
				}
			}
			if strings.Contains(all, secret) {
				t.Error("the findings tell the secret")
			}
		})
	}
}

func TestTheClientThatWasHandedInIsNotChanged(t *testing.T) {
	client := &http.Client{Timeout: time.Nanosecond}
	if _, err := nextcloudtalk.New("cloud", nextcloudtalk.Config{URL: server, Secret: secret}, client, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if client.CheckRedirect != nil || client.Timeout != time.Nanosecond {
		t.Error("the client was changed")
	}
}
