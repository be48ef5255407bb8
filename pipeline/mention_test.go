package pipeline

import (
	"strings"
	"testing"

	"trill/adapters"
)

func TestMentionIsAWordThatAddressesTheBot(t *testing.T) {
	for _, tt := range []struct {
		text string
		want string // what the bot reads
		ok   bool
	}{
		{"@trill list the files", "list the files", true},
		{"@Trill, list the files", "list the files", true},
		{"@TRILL: list", "list", true},
		{"please list the files @trill", "please list the files", true},
		{"can you list the files, @Trill?", "can you list the files?", true},
		{"please help, @Trill,", "please help,", true},
		{"is @trill there today", "is @trill there today", true},
		{"@trill", "", true},
		{"@trill\n/help", "/help", true},
		{"look at this\n\n@trill what is it", "look at this\n\n@trill what is it", true},
		{"(@trill) hello", "(@trill) hello", true},
		{"@trill it's 5\" wide and 6\" high", "it's 5\" wide and 6\" high", true},
		{"it's don't @trill won't", "it's don't @trill won't", true},
		{"`code` @trill `more`", "`code` @trill `more`", true},
		{"```\ncode\n```\n@trill explain", "```\ncode\n```\n@trill explain", true},
		{"> she said hello\n@trill answer her", "> she said hello\n@trill answer her", true},
		{"he said \"hi\" and @trill said \"ho\"", "he said \"hi\" and @trill said \"ho\"", true},

		{"@trillium is a flower", "", false},
		{"@trill_bot hello", "", false},
		{"@trill2 hello", "", false},
		{"@trillé hello", "", false},
		{"@trill\u0301 hello", "", false},
		{"mail me at a@trill.example", "", false},
		{"mail me at @trill.example", "", false},
		{"follow @trill@social.example", "", false},
		{"import @trill/core", "", false},
		{"x@trill", "", false},
		{"@@trill", "", false},
		{"see https://example.com/@trill for more", "", false},
		{"see https://example.com/?q=(@trill for more", "", false},
		{"see www.example.com/(@trill)", "", false},
		{"`@trill` in code", "", false},
		{"``a ` @trill`` in code", "", false},
		{"```\n@trill\n```", "", false},
		{"```go\n@trill\nno end", "", false},
		{"~~~\n@trill\n```\n@trill\n~~~", "", false},
		{"    @trill as code", "", false},
		{"> @trill do it", "", false},
		{"  > @trill do it", "", false},
		{"a quoted \"@trill\" is not a call", "", false},
		{"a quoted “@trill do it” is not", "", false},
		{"ein zitiertes „@trill“ auch nicht", "", false},
		{"une «@trill» non plus", "", false},
		{"nor '@trill' here", "", false},
		{"nothing at all", "", false},
		{"", "", false},
		{"@tri", "", false},
		{"trill without the sign", "", false},
	} {
		got, ok := addressed(&adapters.InboundMessage{Text: tt.text}, "@trill")
		if ok != tt.ok || got != tt.want {
			t.Errorf("%q: %q, %v; want %q, %v", tt.text, got, ok, tt.want, tt.ok)
		}
	}
}

func TestWhatThePlatformSaysIsAMention(t *testing.T) {
	self := &adapters.Quote{Sender: adapters.Person{Self: true}}
	other := &adapters.Quote{Sender: adapters.Person{ID: "users/bob"}, Text: "@trill do it"}
	for name, tt := range map[string]struct {
		m  adapters.InboundMessage
		ok bool
	}{
		"entity":               {adapters.InboundMessage{Text: "hello", Mentioned: true}, true},
		"direct":               {adapters.InboundMessage{Text: "hello", Direct: true}, true},
		"reply to the bot":     {adapters.InboundMessage{Text: "hello", Quote: self}, true},
		"reply to a person":    {adapters.InboundMessage{Text: "hello", Quote: other}, false},
		"nothing of the above": {adapters.InboundMessage{Text: "hello"}, false},
	} {
		if _, ok := addressed(&tt.m, "@trill"); ok != tt.ok {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

func FuzzMention(f *testing.F) {
	for _, s := range []string{"@trill", "`@trill` @trill", "\"@trill", "“@trill”", "```\n@trill", "a '@trill' b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		text, ok := addressed(&adapters.InboundMessage{Text: s}, "@trill")
		if ok && !strings.Contains(strings.ToLower(s), "@trill") && !strings.EqualFold(s, "@trill") {
			// EqualFold also folds letters that ToLower does not.
			if _, found := findTrigger(s, "@trill"); !found {
				t.Errorf("%q is a mention", s)
			}
		}
		if len(text) > len(s) {
			t.Errorf("%q grew to %q", s, text)
		}
		if _, ok := addressed(&adapters.InboundMessage{Text: "`" + strings.ReplaceAll(strings.ReplaceAll(s, "`", ""), "\n", "") + " @trill `"}, "@trill"); ok && !strings.ContainsAny(s, "`\n\r") && !strings.Contains(strings.ToLower(s), "@trill") {
			t.Errorf("a mention in code counts: %q", s)
		}
	})
}

func TestRolesComeFromTheMostSpecificGrant(t *testing.T) {
	a := Access{Default: RoleNone, Grants: []Grant{
		{"cloud:*", RoleGuest},
		{"cloud:users/*", RoleMember},
		{"cloud:users/alice", RoleAdmin},
		{"cloud:users/mallory", RoleNone},
		{"mail:*@example.com", RoleMember},
		{"both:*x", RoleOperator},
		{"both:x*", RoleGuest},
	}}
	for person, want := range map[string]Role{
		"cloud:users/alice":      RoleAdmin,
		"cloud:users/alice2":     RoleMember,
		"cloud:users/bob":        RoleMember,
		"cloud:users/mallory":    RoleNone,
		"cloud:guests/e954":      RoleGuest,
		"slack:users/alice":      RoleNone,
		"mail:bob@example.com":   RoleMember,
		"mail:bob@example.com.x": RoleNone,
		"both:xx":                RoleGuest, // equal weight: the lesser
		"":                       RoleNone,
	} {
		if got := a.RoleOf(person); got != want {
			t.Errorf("%s is %s, want %s", person, got, want)
		}
	}
}

func TestCommandsAreRead(t *testing.T) {
	for text, want := range map[string][2]string{
		"/help":                  {"help", ""},
		"/HELP":                  {"help", ""},
		"/approve ABC12":         {"approve", "ABC12"},
		"/deny ABC12 not today":  {"deny", "ABC12 not today"},
		"/help\nand more":        {"help", ""},
		"stop":                   {"stop", ""},
		"Stop!":                  {"stop", ""},
		"🛑":                      {"stop", ""},
		"stop the server please": {"", ""},
		"/usr/bin/env":           {"usr/bin/env", ""},
		"hello /help":            {"", ""},
		"":                       {"", ""},
	} {
		name, args := parseCommand(text)
		if name != want[0] || args != want[1] {
			t.Errorf("%q: %q %q, want %q", text, name, args, want)
		}
	}
}
