package message

import (
	"encoding/json"
	"testing"
)

func TestCallWithBrokenArgumentsCanBeWritten(t *testing.T) {
	for args, want := range map[string]string{
		`{"a":1}`: `{"id":"1","tool":"t","args":{"a":1}}`,
		`{"a":`:   `{"id":"1","tool":"t","args":"{\"a\":"}`,
		``:        `{"id":"1","tool":"t","args":""}`,
	} {
		got, err := json.Marshal([]Call{{ID: "1", Tool: "t", Args: json.RawMessage(args)}})
		if err != nil || string(got) != "["+want+"]" {
			t.Errorf("%q: %s, %v", args, got, err)
		}
	}
}
