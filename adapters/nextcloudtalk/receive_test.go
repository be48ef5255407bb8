package nextcloudtalk_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trill/adapters"
	"trill/adapters/nextcloudtalk"
)

const (
	secret  = "S3cretS3cretS3cretS3cretS3cretS3cretS3cretS3cret"
	server  = "https://cloud.example.com"
	ownHash = "d1b1adecde65699edfde27a4158bf27d79a3ad61"
)

// What a real server sent.
const (
	randomA = "P0SOzkJr9fB7bW5Nf2DcRFd7+vMJLftmRg4EKgvlrmHBzfrgXh67wSSl/pQI3nj+"
	bodyA   = `{"type":"Join","actor":{"type":"Application","id":"bots\/bot-d1b1adecde65699edfde27a4158bf27d79a3ad61","name":"Testbot"},"object":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"}}`
	macA    = "5e54fcffbb21fbd85be3d04f5927cd3e2ab8c9219d3c9e85c5aa0b7b6ecf6ddc"
	randomB = "2dSKY0kpD2joMzSl3FKP0SgTtw1JEs3MxgZiP+3gienqLMxl/5G1TTpPQi6x/H+s"
	bodyB   = `{"type":"Create","actor":{"type":"Person","id":"users\/alice","name":"Alice \u00c4","talkParticipantType":"1"},"object":{"type":"Note","id":"3","name":"message","content":"{\"message\":\"hello **bot** & <b>x<\\\/b> \\\"quoted\\\" \\u00fcn\\u00efcode \\ud83d\\ude00 \\\/ slash\",\"parameters\":[]}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"}}`
	macB    = "aa75e33a518b62dadef0bc2bc3157b72b1285d8d83e0e2b130f6d9b19eda84ba"

	bodyCaption = `{"type":"Activity","actor":{"type":"Person","id":"users\/alice","name":"Alice \u00c4"},"object":{"type":"Note","id":"35","name":"","content":"{\"message\":\"look at this {mention-user1}\",\"parameters\":{\"actor\":{\"type\":\"user\",\"id\":\"alice\",\"name\":\"Alice \\u00c4\",\"mention-id\":\"alice\"},\"file\":{\"type\":\"file\",\"id\":\"248\",\"name\":\"f \\u00fc.txt\",\"size\":\"10\",\"path\":\"f \\u00fc.txt\",\"link\":\"http:\\\/\\\/127.0.0.1:8181\\\/index.php\\\/s\\\/q8CGCJ6At4zKiKC\",\"etag\":\"962dc3f04713f0919f741245e016db43\",\"permissions\":\"27\",\"mimetype\":\"text\\\/plain\",\"preview-available\":\"yes\",\"hide-download\":\"no\"},\"mention-user1\":{\"type\":\"user\",\"id\":\"bob\",\"name\":\"Bob\",\"mention-id\":\"bob\"}}}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"}}`
	bodyLike    = `{"type":"Like","actor":{"type":"Person","id":"users\/alice","name":"Alice \u00c4"},"object":{"type":"Note","id":"3","name":"","content":"{\"message\":\"edited text\",\"parameters\":[]}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"},"content":"\ud83d\udc4d"}`
	bodyReply   = `{"type":"Create","actor":{"type":"Person","id":"users\/bob","name":"Bob","talkParticipantType":"3"},"object":{"type":"Note","id":"41","name":"message","content":"{\"message\":\"reply to bot\",\"parameters\":[]}","mediaType":"text\/markdown","inReplyTo":{"type":"Note","actor":{"type":"Person","id":"bots\/bot-d1b1adecde65699edfde27a4158bf27d79a3ad61","name":"Testbot (Bot)"},"object":{"type":"Note","id":"20","name":"message","content":"{\"message\":\"hello from bot\",\"parameters\":[]}","mediaType":"text\/markdown"}}},"target":{"type":"Collection","id":"njgum9ki","name":"B\u00fcro Test"}}`
	bodyGuest   = `{"type":"Create","actor":{"type":"Person","id":"guests\/e954cb3c0470096b50b52bb5392197cc9b92c47f","name":"","talkParticipantType":"4"},"object":{"type":"Note","id":"49","name":"message","content":"{\"message\":\"guest says hi {mention-call1}\",\"parameters\":{\"mention-call1\":{\"type\":\"call\",\"id\":\"8njnmhgz\",\"name\":\"Pub\",\"call-type\":\"public\",\"mention-id\":\"all\"}}}","mediaType":"text\/markdown"},"target":{"type":"Collection","id":"8njnmhgz","name":"Pub"}}`
)

func newAdapter(t testing.TB, conf nextcloudtalk.Config) *nextcloudtalk.Adapter {
	t.Helper()
	if conf.URL == "" {
		conf.URL = server
	}
	if conf.Secret == "" {
		conf.Secret = secret
	}
	a, err := nextcloudtalk.New("cloud", conf, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// header is what a server sends with a body that it signed.
func header(random, mac string) http.Header {
	return http.Header{
		"X-Nextcloud-Talk-Random":    {random},
		"X-Nextcloud-Talk-Signature": {mac},
		"X-Nextcloud-Talk-Backend":   {server + "/"},
	}
}

func signed(body string) http.Header {
	return header(randomA, nextcloudtalk.SignRequest(secret, randomA, []byte(body)))
}

// receive reads a body that the server signed, which says one thing.
func receive(t *testing.T, a *nextcloudtalk.Adapter, body string) adapters.InboundMessage {
	t.Helper()
	ms, err := a.Receive(signed(body), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if len(ms) != 1 {
		t.Fatalf("%d messages, want 1", len(ms))
	}
	return ms[0]
}

func TestReceiveReadsWhatARealServerSent(t *testing.T) {
	alice := adapters.Person{ID: "users/alice", Name: "Alice Ä"}
	self := adapters.Person{ID: "bots/bot-" + ownHash, Name: "Testbot", Bot: true, Self: true}
	quoted := self
	quoted.Name = "Testbot (Bot)"
	a := newAdapter(t, nextcloudtalk.Config{})
	cases := []struct { // in order: the first makes the bot known to itself
		name, random, body, mac string
		want                    adapters.InboundMessage
	}{
		{"vector A", randomA, bodyA, macA, adapters.InboundMessage{
			ID: adapters.MessageID("njgum9ki/joined/" + macA[:32]), Kind: adapters.KindJoined, Room: "njgum9ki", RoomName: "Büro Test", Sender: self,
		}},
		{"vector B", randomB, bodyB, macB, adapters.InboundMessage{
			ID: "njgum9ki/3", ReplyTo: "3", Kind: adapters.KindText, Room: "njgum9ki", RoomName: "Büro Test", Sender: alice,
			Text: `hello **bot** & <b>x</b> "quoted" ünïcode 😀 / slash`,
		}},
		{"N3 a file with a caption", randomA, bodyCaption, "", adapters.InboundMessage{
			ID: "njgum9ki/35", ReplyTo: "35", Kind: adapters.KindText, Room: "njgum9ki", RoomName: "Büro Test", Sender: alice,
			Text: "look at this @Bob\n[file: f ü.txt, text/plain, 10 B]",
			Attachments: []adapters.Attachment{{
				ID: "248", Name: "f ü.txt", MIME: "text/plain", Size: 10, Link: "http://127.0.0.1:8181/index.php/s/q8CGCJ6At4zKiKC",
			}},
		}},
		{"N2 a reaction names the author, so it names nobody", randomA, bodyLike, "", adapters.InboundMessage{
			ID: "njgum9ki/reaction/", ReplyTo: "3", Kind: adapters.KindReaction, Room: "njgum9ki", RoomName: "Büro Test", Text: "👍",
		}},
		{"a reply to the bot", randomA, bodyReply, "", adapters.InboundMessage{
			ID: "njgum9ki/41", ReplyTo: "41", Kind: adapters.KindText, Room: "njgum9ki", RoomName: "Büro Test",
			Sender: adapters.Person{ID: "users/bob", Name: "Bob"}, Text: "reply to bot", Mentioned: true,
			Quote: &adapters.Quote{ID: "njgum9ki/20", Sender: quoted, Text: "hello from bot"},
		}},
		{"a guest without a name who calls all", randomA, bodyGuest, "", adapters.InboundMessage{
			ID: "8njnmhgz/49", ReplyTo: "49", Kind: adapters.KindText, Room: "8njnmhgz", RoomName: "Pub",
			Sender: adapters.Person{ID: "guests/e954cb3c0470096b50b52bb5392197cc9b92c47f"}, Text: "guest says hi @all",
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if c.mac == "" {
				c.mac = nextcloudtalk.SignRequest(secret, c.random, []byte(c.body))
			}
			ms, err := a.Receive(header(c.random, c.mac), []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			c.want.Channel, c.want.Platform = "cloud", "nextcloud-talk"
			if strings.HasSuffix(string(c.want.ID), "/reaction/") {
				c.want.ID += adapters.MessageID(c.mac[:32])
			}
			if diff := cmp.Diff([]adapters.InboundMessage{c.want}, ms); diff != "" {
				t.Errorf("messages (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVectorsAreExact(t *testing.T) {
	if len(bodyA) != 192 {
		t.Errorf("vector A has %d bytes, want 192", len(bodyA))
	}
	sum := sha256.Sum256([]byte(bodyB))
	if got := hex.EncodeToString(sum[:]); got != "f304cfe83afafa58daa1ecc34f3df229b6198ff0b4c1e1a3de9ed0f18d8d1bcc" {
		t.Errorf("vector B was changed: %s", got)
	}
	random := strings.Repeat("0123456789abcdef", 4)
	const text = "Hello from the bot: äöü 😀 & <b>"
	for name, v := range map[string]struct{ signed, want string }{
		"C":                            {text, "db6b041a6b564643237b676f0da26031146b05e76964a1e232c0e1eb30639e58"},
		"C over the JSON, which is N1": {`{"message":"` + text + `"}`, "d01c25057e69d4652093acf7a7c6674de253b671afd6becd430076f27a13ad8d"},
		"D":                            {"👍", "e94776d09cb070afe431ca79b175a91d30249ba0573cbeb9972dd5902c97da3e"},
	} {
		if got := nextcloudtalk.SignRequest(secret, random, []byte(v.signed)); got != v.want {
			t.Errorf("vector %s: %s, want %s", name, got, v.want)
		}
	}
}

func TestReceiveLetsOnlyTheServerIn(t *testing.T) {
	set := func(key string, values ...string) func(http.Header) {
		return func(h http.Header) { h[key] = values }
	}
	const random, signature, backend = "X-Nextcloud-Talk-Random", "X-Nextcloud-Talk-Signature", "X-Nextcloud-Talk-Backend"
	cases := map[string]struct {
		change func(http.Header)
		body   string
		ok     bool
	}{
		"as sent":                                   {func(http.Header) {}, bodyA, true},
		"A07 signature in upper case":               {set(signature, strings.ToUpper(macA)), bodyA, true},
		"A07 signature cut to 62":                   {set(signature, macA[:62]), bodyA, false},
		"A07 signature twice":                       {set(signature, macA, macA), bodyA, false},
		"signature missing":                         {set(signature), bodyA, false},
		"signature not hexadecimal":                 {set(signature, strings.Repeat("g", 64)), bodyA, false},
		"signature of something else":               {set(signature, macB), bodyA, false},
		"slashes unescaped":                         {func(http.Header) {}, strings.ReplaceAll(bodyA, `\/`, "/"), false},
		"one byte more":                             {func(http.Header) {}, bodyA + " ", false},
		"random twice":                              {set(random, randomA, randomA), bodyA, false},
		"random missing":                            {set(random), bodyA, false},
		"W4 a byte of the body moved to the random": {set(random, randomA+"{"), bodyA[1:], false},
		"W4 a byte of the random moved to the body": {set(random, randomA[:63]), randomA[63:] + bodyA, false},
		"A06 another server":                        {set(backend, "https://evil.example/"), bodyA, false},
		"another port":                              {set(backend, server+":8443/"), bodyA, false},
		"not encrypted":                             {set(backend, "http://cloud.example.com/"), bodyA, false},
		"server in front of an @":                   {set(backend, "https://cloud.example.com@evil.example/"), bodyA, false},
		"backend missing":                           {set(backend), bodyA, false},
		"backend twice":                             {set(backend, server, server), bodyA, false},
		"backend unset on the server":               {set(backend, "/"), bodyA, false},
		"backend with the usual port":               {set(backend, "HTTPS://Cloud.Example.com:443/sub"), bodyA, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			h := header(randomA, macA)
			c.change(h)
			_, err := newAdapter(t, nextcloudtalk.Config{}).Receive(h, []byte(c.body))
			if c.ok && err != nil {
				t.Errorf("refused: %v", err)
			}
			if !c.ok && !errors.Is(err, adapters.ErrSignature) {
				t.Errorf("error %v, want ErrSignature", err)
			}
		})
	}
}

func TestBackendCheckCanBeSetAndTurnedOff(t *testing.T) {
	elsewhere := header(randomA, macA)
	elsewhere["X-Nextcloud-Talk-Backend"] = []string{"https://public.example/"}
	for name, c := range map[string]struct {
		conf nextcloudtalk.Config
		ok   bool
	}{
		"an internal address":             {nextcloudtalk.Config{URL: "http://nextcloud:8080"}, false},
		"an internal address and backend": {nextcloudtalk.Config{URL: "http://nextcloud:8080", Backend: "https://public.example"}, true},
		"any backend":                     {nextcloudtalk.Config{AnyBackend: true}, true},
	} {
		_, err := newAdapter(t, c.conf).Receive(elsewhere, []byte(bodyA))
		if (err == nil) != c.ok {
			t.Errorf("%s: error %v, want accepted = %v", name, err, c.ok)
		}
	}
}

// note is a Create with the given pieces of JSON.
func note(id, content, more, target string) string {
	return fmt.Sprintf(`{"type":"Create","actor":{"type":"Person","id":"users\/alice","name":"Alice"},"object":{"type":"Note","id":%s,"name":"message","content":%q%s},"target":{"type":"Collection","id":"room1","name":%q}}`, id, content, more, target)
}

func TestReceiveRefusesWhatTheServerWouldNotSend(t *testing.T) {
	plain := `{"message":"x","parameters":[]}`
	cases := map[string]string{
		"A04 a second object":         bodyB + bodyB,
		"A05 object.id twice":         strings.Replace(bodyB, `"id":"3"`, `"id":"3","id":"4"`, 1),
		"type in two cases":           strings.Replace(bodyB, `"type"`, `"Type":"Join","type"`, 1),
		"A11 nested arrays":           strings.Repeat("[", 1<<19),
		"not an object":               `"x"`,
		"nothing":                     "",
		"invalid UTF-8":               strings.Replace(bodyB, "hello", "\xff", 1),
		"content is not JSON":         note(`"1"`, "hello", "", "r"),
		"content with a name twice":   note(`"1"`, `{"message":"a","message":"b"}`, "", "r"),
		"no message id":               note(`""`, plain, "", "r"),
		"message id with a slash":     note(`"1/2"`, plain, "", "r"),
		"message id of 65 characters": note(`"`+strings.Repeat("1", 65)+`"`, plain, "", "r"),
		"room with dots":              strings.Replace(note(`"1"`, plain, "", "r"), "room1", "../admin", 1),
		"type is a number":            strings.Replace(bodyB, `"type":"Create"`, `"type":1`, 1),
		"actor is a list":             strings.Replace(note(`"1"`, plain, "", "r"), `"actor":`, `"actor":[],"x":`, 1),
		"actor id is a number":        strings.Replace(note(`"1"`, plain, "", "r"), `"users\/alice"`, `7`, 1),
		"target is text":              strings.Replace(note(`"1"`, plain, "", "r"), `"target":`, `"target":"room1","x":`, 1),
		"content is a number":         strings.Replace(bodyB, `"content":"`, `"content":7,"x":"`, 1),
		"message is a number":         note(`"1"`, `{"message":7}`, "", "r"),
		"quote with a name twice":     note(`"1"`, plain, `,"inReplyTo":{"actor":{"id":"a","id":"b"}}`, "r"),
		"no actor":                    strings.Replace(note(`"1"`, plain, "", "r"), `users\/alice`, "alice", 1),
		"actor with hidden letters":   strings.Replace(note(`"1"`, plain, "", "r"), `users\/alice`, `users\/al\u200bice`, 1),
	}
	for name, body := range cases {
		t.Run(name, func(t *testing.T) {
			ms, err := newAdapter(t, nextcloudtalk.Config{}).Receive(signed(body), []byte(body))
			if !errors.Is(err, adapters.ErrMalformed) || errors.Is(err, adapters.ErrSignature) {
				t.Errorf("got %v, %v, want ErrMalformed", ms, err)
			}
		})
	}
}

func TestReceiveTakesWhatVersionsDifferIn(t *testing.T) {
	plain := `{"message":"x","parameters":[]}`
	a := newAdapter(t, nextcloudtalk.Config{})
	for name, c := range map[string]struct {
		body   string
		id     adapters.MessageID
		thread adapters.ThreadID
	}{
		"id as text":                      {note(`"7"`, plain, "", "r"), "room1/7", ""},
		"id as number":                    {note(`7`, plain, "", "r"), "room1/7", ""},
		"N7 thread as text":               {note(`7`, plain, `,"threadId":"5"`, "r"), "room1/7", "5"},
		"N7 thread as number":             {note(`7`, plain, `,"threadId":5`, "r"), "room1/7", "5"},
		"N7 no thread":                    {note(`7`, plain, `,"threadId":null`, "r"), "room1/7", ""},
		"N7 thread 0":                     {note(`7`, plain, `,"threadId":0`, "r"), "room1/7", ""},
		"thread of another kind":          {note(`7`, plain, `,"threadId":{"id":5}`, "r"), "room1/7", ""},
		"inReplyTo of another kind":       {note(`7`, plain, `,"inReplyTo":"5"`, "r"), "room1/7", ""},
		"fields nobody knows":             {note(`7`, plain, `,"later":[{"x":1}]`, "r"), "room1/7", ""},
		"N9 no parameters":                {note(`7`, `{"message":"x"}`, "", "r"), "room1/7", ""},
		"N9 parameters as an empty array": {note(`7`, plain, "", "r"), "room1/7", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := receive(t, a, c.body)
			if m.ID != c.id || m.Thread != c.thread || m.Text != "x" || m.Kind != adapters.KindText {
				t.Errorf("got %+v", m)
			}
		})
	}
}

func TestReceiveTellsKindsApart(t *testing.T) {
	activity := func(name, content string) string {
		return fmt.Sprintf(`{"type":"Activity","actor":{"type":"Person","id":"users\/alice","name":"Alice"},"object":{"type":"Note","id":"9","name":%q,"content":%q},"target":{"type":"Collection","id":"room1","name":"Room"}}`, name, content)
	}
	file := `{"message":"{file}","parameters":{"file":{"type":"file","id":"1","name":"a.pdf","size":2048,"mimetype":"application\/pdf"}}}`
	poll := `{"message":"{object}","parameters":{"object":{"type":"talk-poll","id":"1","name":"Lunch?"}}}`
	undo := `{"type":"Undo","actor":{"type":"Person","id":"users\/alice","name":"A"},"object":` + bodyLike + `,"target":{"type":"Collection","id":"njgum9ki","name":"B"}}`
	a := newAdapter(t, nextcloudtalk.Config{})
	for name, c := range map[string]struct {
		body  string
		kind  adapters.Kind
		reply adapters.MessageID
		text  string
	}{
		"a file alone":             {activity("", file), adapters.KindText, "9", "[file: a.pdf, application/pdf, 2.0 kB]"},
		"a file, Talk 23":          {activity("message", file), adapters.KindText, "9", "[file: a.pdf, application/pdf, 2.0 kB]"},
		"a poll":                   {activity("", poll), adapters.KindText, "9", "[talk-poll: Lunch?]"},
		"nameless without object":  {activity("", `{"message":"x","parameters":[]}`), adapters.KindSystem, "", "x"},
		"renamed":                  {activity("conversation_renamed", `{"message":"{actor} renamed","parameters":{"actor":{"type":"user","id":"alice","name":"Alice"}}}`), adapters.KindSystem, "", "Alice renamed"},
		"A19 edited":               {activity("message_edited", `{"message":"You edited a message","parameters":[]}`), adapters.KindEdit, "", "You edited a message"},
		"reaction revoked, report": {activity("reaction_revoked", `{"message":"x","parameters":[]}`), adapters.KindSystem, "", "x"},
		"reaction taken back":      {undo, adapters.KindReaction, "3", "-👍"},
		"left":                     {strings.Replace(bodyA, "Join", "Leave", 1), adapters.KindLeft, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := receive(t, a, c.body)
			if m.Kind != c.kind || m.ReplyTo != c.reply || m.Text != c.text {
				t.Errorf("got kind %q, reply to %q, text %q", m.Kind, m.ReplyTo, m.Text)
			}
			if m.Kind == adapters.KindReaction && m.Sender != (adapters.Person{}) {
				t.Errorf("a reaction was attributed to %+v", m.Sender)
			}
		})
	}
	unknown := `{"type":"Announce","actor":7}`
	if ms, err := a.Receive(signed(unknown), []byte(unknown)); len(ms) != 0 || !errors.Is(err, adapters.ErrMalformed) {
		t.Errorf("broken actor: %v, %v", ms, err)
	}
	upper := strings.Replace(bodyB, `"type":"Create"`, `"TYPE":"Create"`, 1)
	if ms, err := a.Receive(signed(upper), []byte(upper)); len(ms) != 0 || err != nil {
		t.Errorf("a name in another case: %v, %v, want nothing", ms, err)
	}
	unknown = `{"type":"Announce","object":{"new":true}}`
	if ms, err := a.Receive(signed(unknown), []byte(unknown)); len(ms) != 0 || err != nil {
		t.Errorf("unknown type: %v, %v, want nothing", ms, err)
	}
}

func TestTextIsReadable(t *testing.T) {
	a := newAdapter(t, nextcloudtalk.Config{})
	const bob = `"mention-user1":{"type":"user","id":"bob","name":"Bob"}`
	for name, c := range map[string]struct{ content, want string }{
		"a mention":                        {`{"message":"hi {mention-user1}!","parameters":{` + bob + `}}`, "hi @Bob!"},
		"N10 a mention typed by hand":      {`{"message":"hi {mention-user1}","parameters":[]}`, "hi {mention-user1}"},
		"one person mentioned two ways":    {`{"message":"{mention-user1} {mention-user1}","parameters":{` + bob + `,"mention-user2":{"type":"user","id":"bob","name":"Bob"}}}`, "@Bob @Bob"},
		"a mention without a name":         {`{"message":"{mention-guest1}","parameters":{"mention-guest1":{"type":"guest","id":"guest/1","name":""}}}`, "@guest/1"},
		"braces":                           {`{"message":"{ {} {{mention-user1}} {","parameters":{` + bob + `}}`, "{ {} {@Bob} {"},
		"a name that is a placeholder":     {`{"message":"{mention-user1}","parameters":{"mention-user1":{"type":"user","id":"x","name":"{mention-user1}{file}"},"file":{"type":"file","name":"f"}}}`, "@{mention-user1}{file}\n[file: f]"},
		"a name that turns text around":    {`{"message":"{mention-user1}","parameters":{"mention-user1":{"type":"user","id":"x","name":"a\u202eb\u200b\u2066c\ud83c\udff4\udb40\udc67\u001b[31m"}}}`, "@abc🏴[31m"},
		"a name of two lines":              {`{"message":"{file}","parameters":{"file":{"type":"file","name":"a\nb.txt"}}}`, "[file: ab.txt]"},
		"a parameter that is null":         {`{"message":"{mention-user1}","parameters":{"mention-user1":null}}`, "{mention-user1}"},
		"parameters that are null":         {`{"message":"x","parameters":null}`, "x"},
		"a parameter that is no object":    {`{"message":"{mention-user1}","parameters":{"mention-user1":"x"}}`, "{mention-user1}"},
		"an unknown kind":                  {`{"message":"see {deck1}","parameters":{"deck1":{"type":"deck-card","id":"1","name":"Card"}}}`, "see Card"},
		"text that turns around is turned": {`{"message":"a\u202eb\ud83d\udc69\u200d\ud83d\udc67\u0000","parameters":[]}`, "ab👩‍👧"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := receive(t, a, note(`"1"`, c.content, "", "r")).Text; got != c.want {
				t.Errorf("text %q, want %q", got, c.want)
			}
		})
	}
}

func TestPlaceholdersCannotBlowUpAMessage(t *testing.T) {
	a := newAdapter(t, nextcloudtalk.Config{})
	content := `{"message":"` + strings.Repeat("{f}", 200_000) + `","parameters":{"f":{"type":"x","name":"` + strings.Repeat("n", 100_000) + `"}}}`
	m := receive(t, a, note(`"1"`, content, "", "r"))
	if len(m.Text) > 300<<10 {
		t.Errorf("text of %d bytes from a message of %d", len(m.Text), len(content))
	}
}

func TestRoomsOfTwoAreDirect(t *testing.T) {
	a := newAdapter(t, nextcloudtalk.Config{})
	for target, want := range map[string]struct {
		name   string
		direct bool
	}{
		`["alice","bob"]`:       {"alice, bob", true},
		`["bob","carol"]`:       {"bob, carol", false}, // alice wrote, and is not one of them
		`["alice"]`:             {`["alice"]`, false},
		`["alice","bob","eve"]`: {`["alice","bob","eve"]`, false},
		`["alice",1]`:           {`["alice",1]`, false},
		`["alice","bob"`:        {`["alice","bob"`, false},
		"Team":                  {"Team", false},
	} {
		m := receive(t, a, note(`"1"`, `{"message":"x","parameters":[]}`, "", target))
		if m.RoomName != want.name || m.Direct != want.direct {
			t.Errorf("%s: name %q, direct %v", target, m.RoomName, m.Direct)
		}
	}
}

func TestRepliesToTheBotAreKnown(t *testing.T) {
	other := strings.ReplaceAll(bodyReply, ownHash, strings.Repeat("0", 40))
	person := strings.ReplaceAll(bodyReply, `bots\/bot-`+ownHash, `users\/eve`)
	for name, c := range map[string]struct {
		conf  nextcloudtalk.Config
		join  bool
		reply string
		want  bool
	}{
		"by the learned id":                   {nextcloudtalk.Config{}, true, bodyReply, true},
		"to another bot":                      {nextcloudtalk.Config{BotName: "Testbot"}, true, other, false},
		"by name while the id is unknown":     {nextcloudtalk.Config{BotName: "Testbot"}, false, bodyReply, true},
		"not by another name":                 {nextcloudtalk.Config{}, false, bodyReply, false},
		"not by the name of a person":         {nextcloudtalk.Config{BotName: "Testbot"}, false, person, false},
		"by another configured address":       {nextcloudtalk.Config{WebhookURL: "https://bot.example/hook"}, false, bodyReply, false},
		"the server knows the address better": {nextcloudtalk.Config{WebhookURL: "https://bot.example/hook"}, true, bodyReply, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdapter(t, c.conf)
			if c.join {
				receive(t, a, bodyA)
			}
			m := receive(t, a, c.reply)
			if m.Mentioned != c.want || m.Quote == nil || m.Quote.Sender.Self != c.want {
				t.Errorf("mentioned %v, quote %+v, want %v", m.Mentioned, m.Quote, c.want)
			}
		})
	}
}

func TestTheSameRequestHasTheSameIDs(t *testing.T) {
	a := newAdapter(t, nextcloudtalk.Config{})
	for _, body := range []string{bodyA, bodyB, bodyCaption, bodyLike} {
		first, again := receive(t, a, body), receive(t, a, body)
		if first.ID != again.ID {
			t.Errorf("ids %q %q", first.ID, again.ID)
		}
	}
	h := header(randomB, nextcloudtalk.SignRequest(secret, randomB, []byte(bodyLike)))
	ms, err := a.Receive(h, []byte(bodyLike))
	if err != nil {
		t.Fatal(err)
	}
	if first := receive(t, a, bodyLike); ms[0].ID == first.ID {
		t.Error("two reactions have the same id")
	}
}

func FuzzReceive(f *testing.F) {
	for _, b := range []string{bodyA, bodyB, bodyCaption, bodyLike, bodyReply, bodyGuest, `{"type":"Undo","object":` + bodyLike + `,"target":{"id":"r"}}`} {
		f.Add([]byte(b))
	}
	a := newAdapter(f, nextcloudtalk.Config{BotName: "Testbot"})
	f.Fuzz(func(t *testing.T, body []byte) {
		kept := bytes.Clone(body)
		ms, err := a.Receive(signed(string(body)), body)
		if !bytes.Equal(kept, body) {
			t.Error("the body was changed")
		}
		if err != nil {
			if len(ms) != 0 || !errors.Is(err, adapters.ErrMalformed) {
				t.Errorf("got %v, %v", ms, err)
			}
			return
		}
		for _, m := range ms {
			if m.ID == "" || m.Room == "" || m.Kind == "" {
				t.Errorf("incomplete: %+v", m)
			}
			if m.Kind == adapters.KindReaction && m.Sender != (adapters.Person{}) {
				t.Errorf("a reaction with a sender: %+v", m)
			}
			if m.Kind != adapters.KindReaction && m.Sender.ID == "" {
				t.Errorf("nobody said: %+v", m)
			}
			for _, name := range []string{m.Sender.Name, m.RoomName, string(m.Sender.ID)} {
				if strings.ContainsAny(name, "\n\r\x1b\u202e\u200b\u2066") {
					t.Errorf("name %q", name)
				}
			}
		}
	})
}

// FuzzContent reads a message whose content comes from a stranger.
func FuzzContent(f *testing.F) {
	f.Add(`hi {mention-user1}`, `{"mention-user1":{"type":"user","id":"bob","name":"Bob"}}`)
	f.Add(`{file}`, `{"file":{"type":"file","name":"a","size":"12"}}`)
	f.Add(`{{a}{b}`, `{"a":{"name":"{b}"},"b":[]}`)
	a := newAdapter(f, nextcloudtalk.Config{})
	f.Fuzz(func(t *testing.T, message, parameters string) {
		body := note(`"1"`, fmt.Sprintf(`{"message":%q,"parameters":%s}`, message, parameters), "", "r")
		ms, err := a.Receive(signed(body), []byte(body))
		if err != nil {
			return
		}
		if text := ms[0].Text; len(text) > 300<<10 || strings.ContainsAny(text, "\x1b\u202e\u200b") {
			t.Errorf("text %q", text)
		}
	})
}

func BenchmarkReceive(b *testing.B) {
	a := newAdapter(b, nextcloudtalk.Config{})
	h, body := header(randomB, macB), []byte(bodyB)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := a.Receive(h, body); err != nil {
			b.Fatal(err)
		}
	}
}
