"""Pictures of draft trees; knows trees and nothing of models."""
