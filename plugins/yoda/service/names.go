package service

// Name is what the service is called, and Yoda the plugin that filters, reserves and sorts.
const (
	Name = "yoda"
	Yoda = "Yoda"
)
