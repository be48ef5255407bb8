package talktest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trill/adapters/nextcloudtalk"
	"trill/adapters/nextcloudtalk/talktest"
)

const (
	secret = "S3cretS3cretS3cretS3cretS3cretS3cretS3cretS3cret"
	random = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

// The answers are those measured on a real server.
func TestServerAnswersAsMeasured(t *testing.T) {
	type request struct {
		method, path, body, signed string
		header                     map[string]string // an empty value removes one
		status                     int
		in                         string // the answer has this in it
	}
	const v2 = "/ocs/v2.php/apps/spreed/api/v1/bot/room1/message"
	json := func(text string) string { return `{"message":"` + text + `"}` }
	for name, c := range map[string]request{
		"a message":              {"POST", v2, json("hello"), "hello", nil, 201, `"data":null`},
		"as a form":              {"POST", v2, url.Values{"message": {"hello"}}.Encode(), "hello", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, 201, ""},
		"white space":            {"POST", v2, json(`  `), "  ", nil, 400, ""},
		"unknown reply":          {"POST", v2, `{"message":"x","replyTo":99}`, "x", nil, 400, ""},
		"signature missing":      {"POST", v2, json("x"), "x", map[string]string{"X-Nextcloud-Talk-Bot-Signature": ""}, 400, ""},
		"short random":           {"POST", v2, json("x"), "x", map[string]string{"X-Nextcloud-Talk-Bot-Random": "short"}, 400, ""},
		"signature over JSON":    {"POST", v2, json("x"), json("x"), nil, 401, ""},
		"unknown room":           {"POST", strings.Replace(v2, "room1", "nowhere", 1), json("x"), "x", nil, 401, ""},
		"bot not enabled":        {"POST", strings.Replace(v2, "room1", "room2", 1), json("x"), "x", nil, 401, ""},
		"no OCS-APIRequest":      {"POST", v2, json("x"), "x", map[string]string{"OCS-APIRequest": ""}, 412, "CSRF check failed"},
		"no Accept":              {"POST", v2, json("x"), "x", map[string]string{"Accept": ""}, 201, "<statuscode>201"},
		"GET":                    {"GET", v2, "", "", nil, 405, ""},
		"32,000 code points":     {"POST", v2, json(strings.Repeat("😀", 32_000)), strings.Repeat("😀", 32_000), nil, 201, ""},
		"32,001 code points":     {"POST", v2, json(strings.Repeat("a", 32_001)), strings.Repeat("a", 32_001), nil, 413, ""},
		"version 1, a failure":   {"POST", strings.Replace(v2, "v2", "v1", 1), json("x"), "y", nil, 200, `"statuscode":401`},
		"reaction to be removed": {"DELETE", strings.Replace(v2, "message", "reaction/1", 1), `{"reaction":"👍"}`, "👍", nil, 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := talktest.New(talktest.Config{Secret: secret})
			s.AddRoom("room2", "Room 2")
			s.Post(t.Context(), "room1", "users/alice", "hi", talktest.PostOptions{})
			r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Accept", "application/json")
			r.Header.Set("OCS-APIRequest", "true")
			r.Header.Set("X-Nextcloud-Talk-Bot-Random", random)
			r.Header.Set("X-Nextcloud-Talk-Bot-Signature", nextcloudtalk.SignRequest(secret, random, []byte(c.signed)))
			for k, v := range c.header {
				r.Header.Del(k)
				if v != "" {
					r.Header.Set(k, v)
				}
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.in) {
				t.Errorf("answered %d %s, want %d with %q", w.Code, w.Body, c.status, c.in)
			}
			if got, want := len(s.Messages("")) == 1, c.status == 201; got != want {
				t.Errorf("visible: %v, want %v", got, want)
			}
		})
	}
}

func TestWebhooksAreWrittenAsPHPWritesThem(t *testing.T) {
	var body, mac, rnd string
	bot := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		body, mac, rnd = string(raw), r.Header.Get("X-Nextcloud-Talk-Signature"), r.Header.Get("X-Nextcloud-Talk-Random")
	}))
	defer bot.Close()
	s := talktest.New(talktest.Config{Secret: secret, BotURL: bot.URL})
	defer s.Close()
	s.AddRoom("njgum9ki", "Büro Test")
	s.Enable(t.Context(), "njgum9ki")
	for range 2 {
		s.Post(t.Context(), "njgum9ki", "users/alice", "x", talktest.PostOptions{})
	}
	d, err := s.Post(t.Context(), "njgum9ki", "users/alice", `hello **bot** & <b>x</b> "quoted" ünïcode 😀 / slash`, talktest.PostOptions{Name: "Alice Ä", Participant: 1})
	if err != nil || d.Status != 200 || d.ID != 3 {
		t.Fatalf("delivery %d %d, %v", d.ID, d.Status, err)
	}
	const want = `{"type":"Create","actor":{"type":"Person","id":"users\/alice","name":"Alice \u00c4","talkParticipantType":"1"},"object":{"type":"Note","id":"3","name":"message","content":"{\"message\":\"hello **bot** & <b>x<\\\/b> \\\"quoted\\\" \\u00fcn\\u00efcode \\ud83d\\ude00 \\\/ slash\",\"parameters\":[]}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"}}`
	if diff := cmp.Diff(want, body); diff != "" {
		t.Errorf("vector B (-want +got):\n%s", diff)
	}
	if mac != nextcloudtalk.SignRequest(secret, rnd, []byte(body)) || len(rnd) != 64 {
		t.Errorf("signed %q with %q", mac, rnd)
	}
}

// The answers are those of the documentation.
func TestAccountsReadTheirRooms(t *testing.T) {
	const chat = "/ocs/v2.php/apps/spreed/api/v1/chat/room1?lookIntoFuture=0"
	type request struct {
		path, user, password string
		status               int
		last                 string // X-Chat-Last-Given
		in                   string // the answer has this in it
	}
	for name, c := range map[string]request{
		"newest first":         {chat + "&limit=2", "reader", "pass", 200, "4", `"id":5`},
		"older ones":           {chat + "&limit=2&lastKnownMessageId=4", "reader", "pass", 200, "2", `"id":3`},
		"with the known one":   {chat + "&limit=2&lastKnownMessageId=4&includeLastKnown=1", "reader", "pass", 200, "3", `"id":4`},
		"all":                  {chat, "reader", "pass", 200, "1", `"actorType":"users"`},
		"a report":             {chat + "&limit=1", "reader", "pass", 200, "5", `"systemMessage":"call_started"`},
		"nothing older":        {chat + "&lastKnownMessageId=1", "reader", "pass", 304, "", ""},
		"a room of others":     {strings.Replace(chat, "room1", "room2", 1), "reader", "pass", 404, "", ""},
		"no such room":         {strings.Replace(chat, "room1", "nowhere", 1), "reader", "pass", 404, "", ""},
		"a wrong password":     {chat, "reader", "wrong", 401, "", `"statuscode":997`},
		"an unknown user":      {chat, "nobody", "pass", 401, "", ""},
		"nobody":               {chat, "", "", 404, "", ""},
		"who am I":             {"/ocs/v2.php/cloud/user", "reader", "pass", 200, "", `"id":"reader"`},
		"who is nobody":        {"/ocs/v2.php/cloud/user", "", "", 401, "", `"statuscode":997`},
		"who, wrong password":  {"/ocs/v2.php/cloud/user", "reader", "wrong", 401, "", ""},
		"waiting for messages": {strings.Replace(chat, "=0", "=1", 1), "reader", "pass", 400, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := talktest.New(talktest.Config{Secret: secret, Accounts: map[string]string{"reader": "pass"}})
			for range 4 {
				s.Post(t.Context(), "room1", "users/alice", "hi", talktest.PostOptions{})
			}
			s.System(t.Context(), "room1", "users/alice", "call_started", "call")
			s.AddRoom("room2", "Room 2")
			s.AddParticipant("room1", "reader")
			r := httptest.NewRequest(http.MethodGet, c.path, http.NoBody)
			r.Header.Set("Accept", "application/json")
			r.Header.Set("OCS-APIRequest", "true")
			if c.user != "" {
				r.SetBasicAuth(c.user, c.password)
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.in) || w.Header().Get("X-Chat-Last-Given") != c.last {
				t.Errorf("answered %d, last %q, %s", w.Code, w.Header().Get("X-Chat-Last-Given"), w.Body)
			}
			s.RemoveParticipant("room1", "reader")
			w = httptest.NewRecorder()
			if s.ServeHTTP(w, r); w.Code == 200 && strings.Contains(c.path, "/chat/") {
				t.Error("reads a room it was taken out of")
			}
		})
	}
}

func TestMentions(t *testing.T) {
	for text, want := range map[string][]string{
		`@bob`: {"bob"}, `@all!`: {"all"}, `hi @"group/x y", @"bob b"`: {"group/x y", "bob b"}, `a@b.c`: nil, `é@bob`: nil, "@\u2060bob": nil, `(@bob)`: nil,
	} {
		if diff := cmp.Diff(want, talktest.Mentions(text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func BenchmarkPost(b *testing.B) {
	bot := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }))
	defer bot.Close()
	s := talktest.New(talktest.Config{Secret: secret, BotURL: bot.URL})
	defer s.Close()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if d, err := s.Post(b.Context(), "room1", "users/alice", "hello", talktest.PostOptions{}); err != nil || d.Status != 200 {
				b.Fatal(d.Status, err)
			}
		}
	})
}
