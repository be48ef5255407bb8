package nextcloudtalk_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trill/adapters"
	"trill/adapters/adaptertest"
	"trill/adapters/nextcloudtalk"
	"trill/adapters/nextcloudtalk/talktest"
)

const (
	account     = "reader"
	appPassword = "aaaaa-bbbbb-ccccc-ddddd-eeeee"
)

// connectAccount is connect with an account that is in the room.
func connectAccount(t testing.TB, sc talktest.Config) talk {
	t.Helper()
	sc.Accounts = map[string]string{account: appPassword}
	tk := connect(t, sc, nextcloudtalk.Config{Account: account, AppPassword: appPassword})
	tk.server.AddParticipant("room1", account)
	return tk
}

// talkative says n things in the room.
func talkative(t *testing.T, tk talk, n int) {
	t.Helper()
	for range n {
		_, _ = tk.server.Post(t.Context(), "room1", "users/alice", "x", talktest.PostOptions{}) // nobody listens
	}
}

func TestFindReadsBackAsFarAsItHasTo(t *testing.T) {
	var now time.Time
	start := time.Now()
	sent := adapters.OutboundMessage{Room: "room1", Text: "answer", Key: adaptertest.Key("sent")}
	for name, c := range map[string]struct {
		before, after int // messages of people, a second each
		since         time.Duration
		key           string
		found         bool
		calls         int
	}{
		"the newest message":             {10, 0, 0, sent.Key, true, 1},
		"behind a page":                  {10, 250, 0, sent.Key, true, 2},
		"never sent":                     {300, 0, 300 * time.Second, "y", false, 1},
		"never sent, long ago":           {900, 10, 400 * time.Second, "y", false, 3},
		"never sent, the room is young":  {10, 10, 0, "y", false, 2},
		"never sent, the room is 2 full": {299, 100, -time.Hour, "y", false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			now = start
			tk := connectAccount(t, talktest.Config{Now: func() time.Time { now = now.Add(time.Second); return now }})
			talkative(t, tk, c.before)
			if _, err := tk.Send(t.Context(), sent); err != nil {
				t.Fatal(err)
			}
			talkative(t, tk, c.after)
			posted := tk.server.Messages("room1")[0]
			before := len(tk.server.Calls())
			m := sent
			m.Key = c.key
			id, found, err := tk.Find(t.Context(), m, start.Add(c.since))
			if err != nil || found != c.found {
				t.Errorf("found %v, %v, want %v", found, err, c.found)
			}
			if want := adapters.MessageID(strconv.FormatInt(posted.ID, 10)); found && id != want || !found && id != "" {
				t.Errorf("id %q, posted as %q", id, want)
			}
			if n := len(tk.server.Calls()) - before; n != c.calls {
				t.Errorf("%d requests, want %d", n, c.calls)
			}
		})
	}
}

func TestFindAsksForLessWhereMessagesAreLong(t *testing.T) {
	key := adaptertest.Key("x")
	var limits []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := r.URL.Query().Get("limit")
		limits = append(limits, limit)
		if limit == "200" {
			_, _ = w.Write(bytes.Repeat([]byte(" "), 8<<20))
		}
		fmt.Fprintf(w, `{"ocs":{"meta":{"statuscode":200},"data":[{"id":7,"actorType":"bots","timestamp":1,"referenceId":%q}]}}`, key)
	}))
	defer srv.Close()
	a := newAdapter(t, nextcloudtalk.Config{URL: srv.URL, Account: account, AppPassword: appPassword})
	id, found, err := a.Find(t.Context(), adapters.OutboundMessage{Room: "room1", Key: key}, time.Now())
	if err != nil || !found || id != "7" {
		t.Errorf("found %q, %v, %v", id, found, err)
	}
	if diff := cmp.Diff([]string{"200", "25"}, limits); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
}

func TestFindAllowsForTheServersClock(t *testing.T) {
	tk := connectAccount(t, talktest.Config{Now: func() time.Time { return time.Now().Add(-50 * time.Second) }})
	m := adapters.OutboundMessage{Room: "room1", Text: "answer", Key: adaptertest.Key("sent")}
	since := time.Now()
	if _, err := tk.Send(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	talkative(t, tk, 250)
	if _, found, err := tk.Find(t.Context(), m, since); err != nil || !found {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestFindDisturbsNobodyInTheRoom(t *testing.T) {
	tk := connectAccount(t, talktest.Config{})
	talkative(t, tk, 250)
	var mu sync.Mutex // guards asked
	var asked []url.Values
	tk.server.Latency(func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.Method != http.MethodGet {
			t.Errorf("%s with the account", r.Method)
		}
		asked = append(asked, r.URL.Query())
	})
	if _, _, err := tk.Find(t.Context(), adapters.OutboundMessage{Room: "room1", Key: "y"}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	usual := func(last ...string) url.Values {
		v := url.Values{"lookIntoFuture": {"0"}, "limit": {"200"}, "includeLastKnown": {"0"}, "setReadMarker": {"0"}, "noStatusUpdate": {"1"}, "markNotificationsAsRead": {"0"}}
		if len(last) > 0 {
			v["lastKnownMessageId"] = last
		}
		return v
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff([]url.Values{usual(), usual("51"), usual("1")}, asked); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestFindWithoutSightLeavesItToTheOperator(t *testing.T) {
	m := adapters.OutboundMessage{Room: "room1", Key: adaptertest.Key("x")}
	for name, c := range map[string]struct {
		room     adapters.RoomID
		key      string
		password adapters.Secret
		words    string
		calls    int // of two searches
		warnings int
	}{
		"no account":          {"room1", m.Key, "", "cannot look", 0, 0},
		"not in the room":     {"room2", m.Key, appPassword, `add it there`, 2, 1},
		"no such room":        {"nowhere", m.Key, appPassword, `add it there`, 2, 1},
		"a refused password":  {"room1", m.Key, "hunter2-hunter2", "app_password", 1, 1},
		"a message of no key": {"room1", "", appPassword, "no key", 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			tk := connectAccount(t, talktest.Config{})
			tk.server.AddRoom("room2", "Room 2")
			conf := tk.conf
			conf.AppPassword = c.password
			if c.password == "" {
				conf.Account = ""
			}
			var log bytes.Buffer
			a, err := nextcloudtalk.New("cloud", conf, nil, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				id, found, err := a.Find(t.Context(), adapters.OutboundMessage{Room: c.room, Key: c.key}, time.Now())
				if id != "" || found || !errors.Is(err, adapters.ErrCannotLook) || !strings.Contains(err.Error(), c.words) {
					t.Errorf("found %q, %v, error %v", id, found, err)
				}
				if c.password != "" && strings.Contains(fmt.Sprintf("%v %+v", err, err), c.password.Reveal()) {
					t.Errorf("the error tells the password: %v", err)
				}
			}
			if n := len(tk.server.Calls()); n != c.calls {
				t.Errorf("%d requests, want %d", n, c.calls)
			}
			if n := strings.Count(log.String(), "level=WARN"); n != c.warnings {
				t.Errorf("%d warnings, want %d:\n%s", n, c.warnings, &log)
			}
			if strings.Contains(log.String(), "hunter2") || strings.Contains(log.String(), appPassword) {
				t.Errorf("the log tells the password:\n%s", &log)
			}
		})
	}
}

func TestARoomIsComplainedAboutAgainAfterItWasSeen(t *testing.T) {
	tk := connectAccount(t, talktest.Config{})
	var log bytes.Buffer
	a, err := nextcloudtalk.New("cloud", tk.conf, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	for i, in := range []bool{false, false, true, false, false} {
		if in {
			tk.server.AddParticipant("room1", account)
		} else {
			tk.server.RemoveParticipant("room1", account)
		}
		_, _, err := a.Find(t.Context(), adapters.OutboundMessage{Room: "room1", Key: "x"}, time.Now())
		if (err == nil) != in {
			t.Errorf("search %d: %v", i+1, err)
		}
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 2 {
		t.Errorf("%d warnings, want 2:\n%s", n, &log)
	}
}

// What is not certain is never called missing.
func TestFindDoubtsAnswers(t *testing.T) {
	now := strconv.FormatInt(time.Now().Unix(), 10)
	one := `{"ocs":{"meta":{"statuscode":200},"data":[{"id":7,"actorType":"users","actorId":"eve","timestamp":` + now + `,"referenceId":"` + adaptertest.Key("x") + `"}]}}`
	for name, c := range map[string]struct {
		status     int
		last, body string
		cannotLook bool
	}{
		"a person with our key, and no end": {200, "", one, false},
		"a page that leads to itself":       {200, "7", one, false},
		"an empty page that leads nowhere":  {200, "", `{"ocs":{"meta":{"statuscode":200},"data":[]}}`, false},
		"a login page":                      {200, "", "<html>log in</html>", false},
		"an error in a success":             {200, "", `{"ocs":{"meta":{"statuscode":404},"data":[]}}`, true},
		"data of another kind":              {200, "", `{"ocs":{"meta":{"statuscode":200},"data":{"id":7}}}`, false},
		"an answer cut short":               {200, "", one[:60], false},
		"an endless answer":                 {200, "", strings.Repeat(" ", 9<<20), false},
		"the lobby":                         {412, "", `{"ocs":{"meta":{"statuscode":412},"data":[]}}`, true},
		"forbidden":                         {403, "", `{"ocs":{"meta":{"statuscode":403},"data":[]}}`, true},
		"not found by something else":       {404, "", "<html>404</html>", false},
		"elsewhere":                         {302, "", "", false},
		"too many requests":                 {429, "", `{"ocs":{"meta":{"statuscode":429},"data":[]}}`, false},
		"maintenance":                       {503, "", "<d:error/>", false},
		"a fault":                           {500, "", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.last != "" {
					w.Header().Set("X-Chat-Last-Given", c.last)
				}
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer srv.Close()
			a := newAdapter(t, nextcloudtalk.Config{URL: srv.URL, Account: account, AppPassword: appPassword})
			id, found, err := a.Find(t.Context(), adapters.OutboundMessage{Room: "room1", Key: adaptertest.Key("x")}, time.Now())
			if id != "" || found || err == nil || errors.Is(err, adapters.ErrCannotLook) != c.cannotLook {
				t.Errorf("found %q, %v, error %v", id, found, err)
			}
			if err != nil && (strings.Contains(err.Error(), appPassword) || strings.Contains(err.Error(), srv.URL)) {
				t.Errorf("the error tells too much: %v", err)
			}
		})
	}
	refused := newAdapter(t, nextcloudtalk.Config{URL: "http://" + closedPort(t), Account: account, AppPassword: appPassword})
	for _, room := range []adapters.RoomID{"room1", "../../admin"} {
		if _, _, err := refused.Find(t.Context(), adapters.OutboundMessage{Room: room, Key: "x"}, time.Now()); err == nil || errors.Is(err, adapters.ErrCannotLook) {
			t.Errorf("in %q: %v", room, err)
		}
	}
}

func TestFindEnds(t *testing.T) {
	var asked int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		w.Header().Set("X-Chat-Last-Given", strconv.Itoa(1_000_000-asked))
		fmt.Fprint(w, `{"ocs":{"meta":{"statuscode":200},"data":[]}}`) // all of it is hidden
	}))
	defer srv.Close()
	a := newAdapter(t, nextcloudtalk.Config{URL: srv.URL, Account: account, AppPassword: appPassword})
	if _, found, err := a.Find(t.Context(), adapters.OutboundMessage{Room: "room1", Key: "x"}, time.Now()); err == nil || found {
		t.Errorf("found %v, %v", found, err)
	}
	if asked > 100 {
		t.Errorf("%d requests", asked)
	}
}

func TestCheckTriesTheAccount(t *testing.T) {
	tk := connectAccount(t, talktest.Config{})
	for password, want := range map[adapters.Secret]bool{appPassword: true, "hunter2-hunter2": false} {
		conf := tk.conf
		conf.AppPassword = password
		a := newAdapter(t, conf)
		for range 2 { // whoever asks again may have put it right
			var got []bool
			for _, f := range a.Check(t.Context()) {
				if f.What == "account" {
					got = append(got, f.OK)
				}
				if all := fmt.Sprintf("%+v", f); strings.Contains(all, password.Reveal()) || !f.OK && f.Advice == "" {
					t.Errorf("finding %s", all)
				}
			}
			if diff := cmp.Diff([]bool{want}, got); diff != "" {
				t.Errorf("account (-want +got):\n%s", diff)
			}
		}
	}
	calls := tk.server.Calls()
	if n := len(calls); n != 4 || !strings.HasSuffix(calls[0].Path, "/cloud/user") {
		t.Errorf("calls %+v", calls)
	}
}
