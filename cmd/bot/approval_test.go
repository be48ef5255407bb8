package main

import (
	"context"
	"net/http"
	"strings"
	"testing"
)

// TestApprovalsAreBoundToPeople plays what somebody might try to get a call
// through that was asked about.
func TestApprovalsAreBoundToPeople(t *testing.T) {
	for name, try := range map[string]func(t *testing.T, s *service, code string, asked int64){
		"A19 a message edited to look like consent": func(t *testing.T, s *service, code string, asked int64) {
			d, err := s.cloud.System(context.Background(), "room1", "users/olga", "message_edited", "/approve "+code)
			if err != nil || d.Status != http.StatusOK {
				t.Errorf("edit: %d %v", d.Status, err)
			}
		},
		"A20 the requester": func(t *testing.T, s *service, code string, asked int64) {
			s.say("room1", "olga", "/approve "+code)
			s.await("somebody else has to approve")
		},
		"A22 a reaction, whoever put it": func(t *testing.T, s *service, code string, asked int64) {
			for _, p := range s.cloud.Messages("room1") {
				if d, err := s.cloud.React(context.Background(), "room1", p.ID, "👍"); err != nil || d.Status != http.StatusOK {
					t.Errorf("reaction: %d %v", d.Status, err)
				}
			}
		},
		"a member": func(t *testing.T, s *service, code string, asked int64) {
			s.say("room1", "alice", "/approve "+code)
			s.await("takes the access of an operator")
		},
		"a stranger": func(t *testing.T, s *service, code string, asked int64) {
			s.say("room1", "mallory", "/approve "+code)
		},
		"another room": func(t *testing.T, s *service, code string, asked int64) {
			s.say("room2", "oskar", "@trill /approve "+code)
			s.await("no question with the code")
		},
		"another code": func(t *testing.T, s *service, code string, asked int64) {
			s.say("room1", "oskar", "/approve ZZZZZ")
			s.await("no question with the code")
		},
		"N10 a placeholder typed by hand": func(t *testing.T, s *service, code string, asked int64) {
			s.say("room1", "mallory", "{mention-user1} /approve "+code)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, "[[access.grant]]\nwho = \"cloud:users/oskar\"\nrole = \"operator\"\n")
			s.model.Handle(once("write_file", map[string]any{"path": "a.txt", "content": "x"}))
			s.start()
			asked := s.say("room1", "olga", "@trill go")
			_, rest, _ := strings.Cut(s.await("May I run").Text, "/approve ")
			code, _, _ := strings.Cut(rest, "`")
			try(t, s, code, asked)
			s.say("room1", "olga", "@trill /status")
			s.await("Waiting for an answer to") // still open
			s.say("room1", "oskar", "/approve "+code)
			if got := s.await("told: ").Text; strings.Contains(got, "Not allowed") {
				t.Errorf("the model was %s", got)
			}
			s.settled()
		})
	}
}
