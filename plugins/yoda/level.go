package yoda

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
)

// Level is how good a card is, in three steps. A request for a level is met by that level only, as it was in the first Yoda: who asks for Low leaves the better cards to others.
type Level string

// The levels. NoLevel is that of a card of which nobody has said one, and in a request that any will do.
const (
	NoLevel Level = ""
	High    Level = "High"
	Medium  Level = "Medium"
	Low     Level = "Low"
)

// LabelNodeLevel is the label of a node by which all of its cards have a level.
const LabelNodeLevel = "scv/Level"

// ParseLevel reads a level: High, Medium or Low, or the same words without a capital.
func ParseLevel(text string) (Level, bool) {
	switch text {
	case "High", "high":
		return High, true
	case "Medium", "medium":
		return Medium, true
	case "Low", "low":
		return Low, true
	}
	return NoLevel, false
}

// Args are the arguments of the plugin in a profile. Nil is none.
type Args struct {
	// Levels say which level a card has, by its model, on nodes without a label scv/Level. The first rule that matches counts; a card that none matches has no level, and meets no request for one. At most 256.
	Levels []LevelRule `json:"levels,omitempty"`
}

// LevelRule gives cards of some models a level.
type LevelRule struct {
	// Model is a pattern of path.Match, which the whole model has to match: "NVIDIA A100-*". 1 to 256 bytes.
	Model string `json:"model"`
	Level Level  `json:"level"`
}

// Bounds of arguments.
const (
	maxRules = 256
	maxModel = 256 // bytes of a model, or of a pattern of models
)

// ParseArgs reads arguments from JSON, strictly: a field that it does not know is an error. No text is no arguments.
func ParseArgs(text []byte) (*Args, error) {
	a := new(Args)
	if len(bytes.TrimSpace(text)) == 0 {
		return a, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(a); err != nil {
		return nil, fmt.Errorf("arguments of Yoda: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("arguments of Yoda: something follows the object")
	}
	if len(a.Levels) > maxRules {
		return nil, fmt.Errorf("arguments of Yoda: levels has %d rules: want at most %d", len(a.Levels), maxRules)
	}
	for i := range a.Levels {
		rule := &a.Levels[i]
		if rule.Model == "" || len(rule.Model) > maxModel {
			return nil, fmt.Errorf("arguments of Yoda: levels[%d].model has %d bytes: want 1 to %d", i, len(rule.Model), maxModel)
		}
		if _, err := path.Match(rule.Model, ""); err != nil {
			return nil, fmt.Errorf("arguments of Yoda: levels[%d].model is %s: want a pattern of path.Match", i, quote(rule.Model))
		}
		level, ok := ParseLevel(string(rule.Level))
		if !ok {
			return nil, fmt.Errorf("arguments of Yoda: levels[%d].level is %s: want %s", i, quote(string(rule.Level)), wantLevel)
		}
		rule.Level = level
	}
	return a, nil
}

// level returns the level of a model of card, on a node without a level of its own.
func (a *Args) level(model string) Level {
	if a == nil {
		return NoLevel
	}
	for i := range a.Levels {
		if ok, err := path.Match(a.Levels[i].Model, model); ok && err == nil {
			return a.Levels[i].Level
		}
	}
	return NoLevel
}
